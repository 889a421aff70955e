"""The letters and words of arrays that all attention ops share, and the problem of a shard of them."""

import dataclasses
from types import MappingProxyType
from typing import Any

from attn_tune.ops.fields.arguments import dims_of

LETTERS = MappingProxyType(
    {
        "q": "btnh",
        "k": "bskh",
        "v": "bskv",
        "bias": "bnts",
        "mask": "bnts",
        "sinks": "n",
        "out": "btnv",
        "dout": "btnv",
    }
)
_RING = (
    "for sharded lengths call attn_tune.ring_attention (ring attention) inside jax.shard_map, or shard batch and heads"
)
_HEADS = "shard batch and heads instead"

# The arguments of ``Call`` that attention ops share.
SHARED: dict[str, Any] = {
    "main": {"q": "query", "k": "key", "v": "value"},
    "parallel": ("b", "n"),
    "groups": {"n": "k"},
    "words": {
        "b": "batch",
        "t": "length",
        "s": "length",
        "n": "query heads",
        "k": "key/value heads",
        "h": "head dim",
        "v": "head dim",
    },
    "remedies": {"t": _RING, "s": _RING, "h": _HEADS, "v": _HEADS},
    "broadcast": ("bias", "mask"),
    # A dropped weight is a function of its place in the batch; each element must drop what it would drop alone.
    "unfoldable": ("dropout",),
}


def with_shapes(problem: Any, operands: Any) -> Any:
    """``problem`` with the sizes that ``operands`` have here."""
    batch, q_len, num_q_heads, head_dim = operands.q.shape
    _, kv_len, num_kv_heads, v_head_dim = operands.v.shape
    return dataclasses.replace(
        problem,
        batch=batch,
        q_len=q_len,
        kv_len=kv_len,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        mask_dims=dims_of(operands.mask),
        bias_dims=dims_of(operands.bias),
    )
