"""A warning for queries and keys whose axes of length and heads look swapped."""

from jaxtyping import Array

from attn_tune.schema.errors import warn

# Models have up to 128.
MOST_KV_HEADS = 256


def warn_of_swapped_axes(query: Array, key: Array) -> None:
    """Warn where more heads than any model has, and than there are tokens, look like lengths."""
    (_, q_len, heads, _), (_, kv_len, kv_heads, _) = query.shape, key.shape
    if kv_heads > MOST_KV_HEADS and q_len < heads and kv_len < kv_heads:
        warn(
            f"query {query.shape} and key {key.shape} are read as [batch, length, heads, head dim], "
            f"{q_len} tokens of {heads} heads; if they are [batch, heads, length, head dim], swap axes 1 and 2"
        )
