"""The operands as a launch of splash attention takes them, in both directions."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jaxtyping import Array, Float

from attn_tune.kernels.block_sparse_attention.pallas_tpu_splash.config import Launch
from attn_tune.kernels.lang.pallas_tpu.padding import Fold
from attn_tune.kernels.lang.pallas_tpu.precision import precision_of
from attn_tune.kernels.lang.pallas_tpu.rewrite import rewritten
from attn_tune.ops.block_sparse_attention.operands import Operands
from attn_tune.ops.block_sparse_attention.problem import Problem
from attn_tune.ops.fields.padding import zero_beyond

# What the kernel writes in place of a hidden logit. A row's logsumexp is near it only if the row saw nothing.
HIDDEN = splash.DEFAULT_MASK_VALUE
# Segment ids of padding, which meet no others.
_Q_PADDING, _KV_PADDING, _LEAST = -(2**31), -(2**31) + 1, -(2**31) + 2


class Arrays(NamedTuple):
    """The launch's arrays, in the order of the library's parameters; the batch is more heads."""

    q: Float[Array, "heads rows H"]
    k: Float[Array, "kv_heads columns H"]
    v: Float[Array, "kv_heads columns V"]
    segment_ids: splash.SegmentIds | None
    sinks: None = None


def folds(p: Problem, launch: Launch) -> tuple[Fold, Fold]:
    """The folds of the batch axis, of rows and of columns."""
    q_len, kv_len = -(-p.q_len // launch.block_q) * launch.block_q, -(-p.kv_len // launch.block_kv) * launch.block_kv
    return (
        Fold(batch=p.batch, length=p.q_len, padded=q_len, end_to_end=False),
        Fold(batch=p.batch, length=p.kv_len, padded=kv_len, end_to_end=False),
    )


def scales(p: Problem) -> tuple[float, float]:
    """The softmax scale as ``(of the query, of the logits)``: the query takes it for nothing, where that is exact."""
    is_exact = p.dtype == "float32" or math.frexp(p.scale)[0] in (0.5, -0.5)
    return (p.scale, 1.0) if is_exact else (1.0, p.scale)


def prepare(p: Problem, launch: Launch, operands: Operands) -> Arrays:
    """Operands scaled where that is exact, folded and padded."""
    q_fold, kv_fold = folds(p, launch)
    ids = None
    if operands.q_segments is not None and operands.kv_segments is not None:
        ids = splash.SegmentIds(
            q_fold.ids(jnp.maximum(operands.q_segments, _LEAST), _Q_PADDING),
            kv_fold.ids(jnp.maximum(operands.kv_segments, _LEAST), _KV_PADDING),
        )
    return Arrays(
        q=q_fold.tokens(operands.q * jnp.asarray(scales(p)[0], operands.q.dtype)),
        k=kv_fold.tokens(zero_beyond(operands.k, operands.kv_lengths)),
        v=kv_fold.tokens(zero_beyond(operands.v, operands.kv_lengths)),
        segment_ids=ids,
    )


def launched(p: Problem, config: Launch, launch: Callable[..., Any], *arrays: Any) -> Any:
    """The results of the library's launch on ``arrays``, with the problem's precision, scale and the VMEM limit."""
    run = rewritten(launch, vmem_limit_kib=config.vmem_limit_kib, logits_scale=scales(p)[1])
    with precision_of(p):
        return run(*arrays)
