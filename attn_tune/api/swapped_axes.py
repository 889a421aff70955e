"""A warning for arrays that look as if their axes of length and heads were swapped."""

from jaxtyping import Array

from attn_tune.schema.errors import warn

# Models have up to 128.
MOST_KV_HEADS = 256


def warn_of_swapped_axes(**arrays: Array) -> None:
    """Warn where more heads than any model has, and than there are tokens, look like lengths.

    Args:
      arrays: by their names, the queries first and the keys last.
    """
    if all(x.shape[2] > MOST_KV_HEADS and x.shape[1] < x.shape[2] for x in arrays.values()):
        _, length, heads, _ = next(iter(arrays.values())).shape
        shapes = " and ".join(f"{name} {x.shape}" for name, x in arrays.items())
        warn(
            f"{shapes} are read as [batch, length, heads, head dim], {length} tokens of {heads} heads; "
            "if they are [batch, heads, length, head dim], swap axes 1 and 2"
        )
