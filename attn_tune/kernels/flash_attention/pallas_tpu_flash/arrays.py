"""The operands as JAX's flash attention takes them: one head count, one head dim, one bias for all it adds."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import flash_attention as library
from jaxtyping import Array, Float, Int

from attn_tune.kernels.flash_attention.pallas_tpu_flash.frame import Frame
from attn_tune.ops.fields.padding import zero_beyond
from attn_tune.ops.flash_attention.operands import Operands

# What a dense mask adds to a hidden logit. The library adds more than this for what segments and causality hide.
HIDDEN = -1e30
# A row whose largest logit is below saw nothing.
EMPTY_BELOW = -1e20
# Segment ids of padding, which meet no others.
_Q_PADDING, _KV_PADDING, _LEAST = -(2**31), -(2**31) + 1, -(2**31) + 2


class Arrays(NamedTuple):
    """Lengths and head dim are the frame's; keys and values are repeated for each query head."""

    q: Float[Array, "B N T D"]
    k: Float[Array, "B N S D"]
    v: Float[Array, "B N S D"]
    bias: Float[Array, "B N T S"] | None
    segment_ids: library.SegmentIds | None


def prepare(frame: Frame, operands: Operands) -> Arrays:
    """Head-major, repeated and padded. The bias is divided by the scale, which the kernel applies after adding it."""
    group = frame.problem.group_size
    return Arrays(
        q=of_rows(frame, operands.q),
        k=of_keys(frame, jnp.repeat(zero_beyond(operands.k, operands.kv_lengths), group, axis=2)),
        v=of_keys(frame, jnp.repeat(zero_beyond(operands.v, operands.kv_lengths), group, axis=2)),
        bias=_bias(frame, operands) if frame.needs_bias else None,
        segment_ids=_segment_ids(frame, operands) if frame.needs_ids else None,
    )


def of_rows(frame: Frame, x: Float[Array, "B T N D"]) -> Float[Array, "B N T D"]:
    """A query-side array."""
    return _widened(frame, _padded(x.swapaxes(1, 2), 2, frame.q_lead, frame.q_len))


def of_keys(frame: Frame, x: Float[Array, "B S N D"]) -> Float[Array, "B N S D"]:
    """A key-side array."""
    return _widened(frame, _padded(x.swapaxes(1, 2), 2, frame.k_lead, frame.kv_len))


def of_numbers(frame: Frame, x: Float[Array, "B N T"], fill: float) -> Float[Array, "B N T"]:
    """One number a row."""
    return _padded(x, 2, frame.q_lead, frame.q_len, fill)


def _widened(frame: Frame, x: Array) -> Array:
    return _padded(x, 3, 0, frame.head_dim)


def _bias(frame: Frame, operands: Operands) -> Float[Array, "B N T S"]:
    p = frame.problem
    shape = (p.batch, p.num_q_heads, p.q_len, p.kv_len)
    bias = jnp.zeros((), jnp.float32)
    if operands.bias is not None:
        bias = operands.bias.astype(jnp.float32)
    if operands.mask is not None:
        bias = jnp.where(operands.mask, bias, HIDDEN)
    bias = jnp.broadcast_to(bias / p.scale, shape)
    return _padded(_padded(bias, 2, frame.q_lead, frame.q_len), 3, frame.k_lead, frame.kv_len)


def _segment_ids(frame: Frame, operands: Operands) -> library.SegmentIds:
    p = frame.problem

    def ids(given: Int[Array, "B L"] | None, length: int, lead: int, padded: int, fill: int):
        if given is None:
            given = jnp.zeros((p.batch, length), jnp.int32)
        return _padded(jnp.maximum(given, _LEAST), 1, lead, padded, fill)

    return library.SegmentIds(
        ids(operands.q_segments, p.q_len, frame.q_lead, frame.q_len, _Q_PADDING),
        ids(operands.kv_segments, p.kv_len, frame.k_lead, frame.kv_len, _KV_PADDING),
    )


def _padded(x: Array, axis: int, lead: int, length: int, fill: float = 0) -> Array:
    if x.shape[axis] == length:
        return x
    widths = [(0, 0)] * x.ndim
    widths[axis] = (lead, length - lead - x.shape[axis])
    return jnp.pad(x, widths, constant_values=fill)
