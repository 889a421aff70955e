"""The backward: one launch for dq (and the bias gradient), one for dk and dv. They share nothing but their inputs."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import flash_attention as library
from jaxtyping import Array, Float

from attn_tune.kernels.flash_attention.pallas_tpu_flash.arrays import (
    Arrays,
    of_numbers,
    of_rows,
    prepare,
)
from attn_tune.kernels.flash_attention.pallas_tpu_flash.config import (
    BackwardConfig,
    DkvConfig,
    DqConfig,
    Launch,
    rows_of,
)
from attn_tune.kernels.flash_attention.pallas_tpu_flash.frame import Frame
from attn_tune.kernels.lang.pallas_tpu.precision import precision_of
from attn_tune.kernels.lang.pallas_tpu.rewrite import rewritten
from attn_tune.ops.flash_attention.operands import BackwardInputs
from attn_tune.ops.flash_attention.problem import Problem

# The logsumexp of rows that see nothing: exp(anything - it) is zero, hidden logits' too.
_EMPTY = 1e30


class _Rows(NamedTuple):
    """The row arrays that a backward reads beside the query: the softmax's denominator after ``exp(-largest)``."""

    total: Float[Array, "B N T"]
    largest: Float[Array, "B N T"]
    dout: Float[Array, "B N T D"]
    delta: Float[Array, "B N T"]


def backward(problem: Problem, config: BackwardConfig, inputs: BackwardInputs) -> dict[str, Array]:
    """``dq``, ``dk``, ``dv``, and ``dbias`` if the problem has a bias; each like its primal."""
    return _of_rows(problem, config.dq, inputs) | _of_keys(problem, config.dkv, inputs)


def _of_rows(problem: Problem, config: DqConfig, inputs: BackwardInputs) -> dict[str, Array]:
    p = problem

    def launch(arrays: Arrays, rows: _Rows) -> tuple[Array, Array | None]:
        return library._flash_attention_bwd_dq(
            *arrays,
            *rows,
            block_q_major=config.block_q,
            block_k_major=config.block_k_major,
            block_k=config.block_k,
            **_common(p),
        )

    frame = _frame(p, config)
    dq, dbias = _run(launch, frame, config, inputs)
    rows = slice(frame.q_lead, frame.q_lead + p.q_len)
    gradients = {"dq": dq[:, :, rows, : p.head_dim].swapaxes(1, 2)}
    if inputs.operands.bias is not None:
        keys = slice(frame.k_lead, frame.k_lead + p.kv_len)
        bias = inputs.operands.bias
        broadcast = tuple(axis for axis, size in enumerate(bias.shape) if size == 1)
        # The kernel's bias is the op's over the scale.
        dbias = jnp.sum(dbias[:, :, rows, keys], axis=broadcast, keepdims=True) / p.scale
        gradients["dbias"] = dbias.astype(bias.dtype)
    return gradients


def _of_keys(problem: Problem, config: DkvConfig, inputs: BackwardInputs) -> dict[str, Array]:
    p = problem

    def launch(arrays: Arrays, rows: _Rows) -> tuple[Array, Array]:
        return library._flash_attention_bwd_dkv(
            *arrays,
            *rows,
            block_q_major=config.block_q_major,
            block_q=config.block_q,
            block_k_major=config.block_k_major,
            block_k=config.block_k,
            **_common(p),
        )

    frame = _frame(p, config)
    dk, dv = _run(launch, frame, config, inputs)
    return {
        "dk": _to_keys(frame, dk, p.head_dim, inputs.operands.k),
        "dv": _to_keys(frame, dv, p.v_head_dim, inputs.operands.v),
    }


def _frame(problem: Problem, config: Launch) -> Frame:
    return Frame(problem=problem, block_q=rows_of(config), block_k=config.block_k_major)


def _common(p: Problem) -> dict[str, Any]:
    return {
        "sm_scale": p.scale,
        "causal": p.causal,
        "mask_value": library.DEFAULT_MASK_VALUE,
        "debug": False,
    }


def _run(launch: Any, frame: Frame, config: Launch, inputs: BackwardInputs) -> Any:
    lse = inputs.residuals.lse
    rows = _Rows(
        # The logsumexp is the largest logit of a softmax whose denominator is one.
        total=of_numbers(frame, jnp.ones_like(lse), 1.0),
        largest=of_numbers(frame, jnp.where(jnp.isneginf(lse), _EMPTY, lse), _EMPTY),
        dout=of_rows(frame, inputs.dout),
        delta=of_numbers(frame, inputs.delta, 0.0),
    )
    with precision_of(frame.problem):
        run = rewritten(launch, vmem_limit_kib=config.vmem_limit_kib)
        return run(prepare(frame, inputs.operands), rows)


def _to_keys(frame: Frame, grad: Float[Array, "B N S D"], width: int, like: Array) -> Array:
    p = frame.problem
    grad = grad[:, :, frame.k_lead : frame.k_lead + p.kv_len, :width].swapaxes(1, 2)
    if p.group_size > 1:
        grad = grad.reshape(p.batch, p.kv_len, p.num_kv_heads, p.group_size, width)
        grad = jnp.sum(grad.astype(jnp.float32), axis=3)
    return grad.astype(like.dtype)
