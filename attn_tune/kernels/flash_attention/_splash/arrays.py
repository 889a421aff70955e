"""The operands as a launch of splash attention takes them, in both directions."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jaxtyping import Array, Float

from attn_tune.kernels.flash_attention._splash.config import HEAD_DIM_MINOR
from attn_tune.kernels.flash_attention._splash.schedule import Schedule
from attn_tune.kernels.lang.pallas_tpu.padding import Fold
from attn_tune.ops.fields.padding import zero_beyond
from attn_tune.ops.flash_attention.operands import Operands
from attn_tune.ops.flash_attention.problem import Problem

# What the kernel writes in place of a hidden logit. A row's logsumexp is near it only if the row saw nothing.
HIDDEN = splash.DEFAULT_MASK_VALUE
# Segment ids of padding, which meet no others.
_Q_PADDING, _KV_PADDING, _LEAST = -(2**31), -(2**31) + 1, -(2**31) + 2


class Arrays(NamedTuple):
    """The launch's arrays: ``heads`` and ``rows`` as ``Fold`` makes them."""

    q: Float[Array, "heads rows H"]
    k: Float[Array, "kv_heads columns H"]
    v: Float[Array, "kv_heads columns V"]
    segment_ids: splash.SegmentIds | None
    sinks: Float[Array, " heads"] | None


class Folds(NamedTuple):
    """Of rows and of columns."""

    q: Fold
    kv: Fold


def folds(schedule: Schedule) -> Folds:
    """The folds of the batch axis, of rows and of columns."""
    p = schedule.problem
    end_to_end = p.has_segments
    return Folds(
        Fold(batch=p.batch, length=p.q_len, padded=schedule.q_len, end_to_end=end_to_end),
        Fold(batch=p.batch, length=p.kv_len, padded=schedule.kv_len, end_to_end=end_to_end),
    )


def scales(p: Problem) -> tuple[float, float]:
    """The softmax scale as ``(of the query, of the logits)``: the query takes it for nothing, where that is exact."""
    is_exact = p.dtype == "float32" or math.frexp(p.scale)[0] in (0.5, -0.5)
    return (p.scale, 1.0) if is_exact else (1.0, p.scale)


def prepare(schedule: Schedule, operands: Operands) -> Arrays:
    """Scaled where that is exact, folded and padded."""
    p, (q_fold, kv_fold) = schedule.problem, folds(schedule)
    segment_ids = sinks = None
    if operands.q_segments is not None and operands.kv_segments is not None:
        segment_ids = splash.SegmentIds(
            q_fold.ids(jnp.maximum(operands.q_segments, _LEAST), _Q_PADDING),
            kv_fold.ids(jnp.maximum(operands.kv_segments, _LEAST), _KV_PADDING),
        )
    if operands.sinks is not None:
        sinks = operands.sinks.astype(jnp.float32)
        sinks = sinks if q_fold.end_to_end else jnp.tile(sinks, p.batch)
    return Arrays(
        q=q_fold.tokens(operands.q * jnp.asarray(scales(p)[0], operands.q.dtype)),
        k=kv_fold.tokens(zero_beyond(operands.k, operands.kv_lengths)),
        v=kv_fold.tokens(zero_beyond(operands.v, operands.kv_lengths)),
        segment_ids=segment_ids,
        sinks=sinks,
    )


def layout(name: str) -> splash.QKVLayout:
    """Splash's own name of a layout."""
    minor = splash.QKVLayout
    return minor.HEAD_DIM_MINOR if name == HEAD_DIM_MINOR else minor.SEQ_MINOR
