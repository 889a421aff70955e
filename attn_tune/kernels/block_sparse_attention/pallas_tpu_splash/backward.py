"""The two backward launches of splash attention, from the op's residuals."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jaxtyping import Array, Float

from attn_tune.kernels.block_sparse_attention.pallas_tpu_splash.arrays import (
    HIDDEN,
    Arrays,
    folds,
    launched,
    prepare,
    scales,
)
from attn_tune.kernels.block_sparse_attention.pallas_tpu_splash.config import (
    BackwardConfig,
    DkvConfig,
    DqConfig,
    Launch,
)
from attn_tune.kernels.block_sparse_attention.pallas_tpu_splash.tables import (
    Tables,
    mask_function,
    mask_info,
    tables_of,
)
from attn_tune.ops.block_sparse_attention.operands import BackwardInputs
from attn_tune.ops.block_sparse_attention.problem import Problem

# The logsumexp of rows that see nothing: exp(anything - it) is zero, hidden logits' too.
_EMPTY = 1e30


class _Rows(NamedTuple):
    """The arrays that a backward reads of each row besides the query."""

    lse: Float[Array, "heads rows"]
    dout: Float[Array, "heads rows V"]
    delta: Float[Array, "heads rows"]


def backward(problem: Problem, config: BackwardConfig, inputs: BackwardInputs) -> dict[str, Array]:
    """``dq``, ``dk`` and ``dv``, each like its primal."""
    return {"dq": _query_gradient(problem, config.dq, inputs), **_key_gradients(problem, config.dkv, inputs)}


def _query_gradient(p: Problem, config: DqConfig, inputs: BackwardInputs) -> Float[Array, "B T N H"]:
    def launch(tables: Tables, arrays: Arrays, rows: _Rows) -> Array:
        return splash._splash_attention_bwd_dq(
            *arrays,
            *rows,
            bq=config.block_q,
            bkv=config.block_kv,
            mask_info=mask_info(p, config, tables),
            **_common(p, config),
        )

    dq = _run(p, config, launch, inputs, by_columns=False)
    # The kernel differentiates by the logits' other factor, whichever of both has the scale.
    return folds(p, config)[0].from_tokens(_times(dq, p.scale))


def _key_gradients(p: Problem, config: DkvConfig, inputs: BackwardInputs) -> dict[str, Array]:
    def launch(tables: Tables, arrays: Arrays, rows: _Rows) -> tuple[Array, Array]:
        _, dk, dv = splash._splash_attention_bwd_dkv(
            *arrays,
            *rows,
            bq=config.block_q,
            bkv=config.block_kv,
            bkv_compute=config.block_kv_compute,
            mask_info=mask_info(p, config, tables),
            use_fused_bwd_kernel=False,
            **_common(p, config),
        )
        return dk, dv

    dk, dv = _run(p, config, launch, inputs, by_columns=True)
    fold = folds(p, config)[1]
    # Against scaled logits the kernel saw an unscaled query.
    return {"dk": fold.from_tokens(_times(dk, scales(p)[1])), "dv": fold.from_tokens(dv)}


def _common(p: Problem, config: Launch) -> dict[str, Any]:
    minor = splash.QKVLayout.HEAD_DIM_MINOR
    return {
        "is_mqa": False,
        "mask_value": HIDDEN,
        "attn_logits_soft_cap": p.soft_cap,
        "q_layout": minor,
        "k_layout": minor,
        "v_layout": minor,
        "mask_function": mask_function(p, config),
        "interpret": False,
    }


def _run(p: Problem, config: Launch, launch: Any, inputs: BackwardInputs, *, by_columns: bool) -> Any:
    fold, lse = folds(p, config)[0], inputs.residuals.lse
    rows = _Rows(
        lse=fold.numbers(jnp.where(jnp.isneginf(lse), _EMPTY, lse), _EMPTY),
        dout=fold.tokens(inputs.dout),
        delta=fold.numbers(inputs.delta, 0.0),
    )
    tables = tables_of(p, config, inputs.operands.block_mask, by_columns=by_columns)
    return launched(p, config, launch, tables, prepare(p, config, inputs.operands), rows)


def _times(x: Array, factor: float) -> Array:
    return x if factor == 1.0 else (x.astype(jnp.float32) * factor).astype(x.dtype)
