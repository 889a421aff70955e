"""The two backward launches of splash attention, from the op's residuals."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jaxtyping import Array, Float

from attn_tune.kernels.flash_attention._splash.arrays import (
    HIDDEN,
    Arrays,
    folds,
    layout,
    prepare,
    scales,
)
from attn_tune.kernels.flash_attention._splash.config import (
    ComputedLaunch,
    DqLaunch,
    FusedLaunch,
    Launch,
)
from attn_tune.kernels.flash_attention._splash.schedule import Schedule
from attn_tune.kernels.lang.pallas_tpu.precision import precision_of
from attn_tune.kernels.lang.pallas_tpu.rewrite import rewritten
from attn_tune.ops.flash_attention.operands import BackwardInputs
from attn_tune.ops.flash_attention.problem import Problem

# The logsumexp of rows that see nothing: exp(anything - it) is zero, hidden logits' too.
_EMPTY = 1e30


class _Rows(NamedTuple):
    """The arrays that a backward reads of each row besides the query."""

    lse: Float[Array, "heads rows"]
    dout: Float[Array, "heads rows V"]
    delta: Float[Array, "heads rows"]


def query_gradient(problem: Problem, config: DqLaunch, inputs: BackwardInputs) -> Float[Array, "B T N H"]:
    """``dq``, like the query."""
    schedule = _schedule(problem, config)

    def launch(arrays: Arrays, rows: _Rows) -> Array:
        return splash._splash_attention_bwd_dq(
            *_without_sinks(arrays),
            *rows,
            bq=config.block_q,
            bkv=config.block_kv,
            mask_info=schedule.by_rows(),
            **_common(schedule, config),
        )

    return _to_query(schedule, _run(launch, schedule, config, inputs))


def key_gradients(problem: Problem, config: ComputedLaunch, inputs: BackwardInputs) -> dict[str, Array]:
    """``dk`` and ``dv``; ``dq`` too from a ``FusedLaunch``."""
    schedule = _schedule(problem, config)
    is_fused = isinstance(config, FusedLaunch)

    def launch(arrays: Arrays, rows: _Rows) -> tuple[Array | None, Array, Array]:
        return splash._splash_attention_bwd_dkv(
            *_without_sinks(arrays),
            *rows,
            bq=config.block_q,
            bkv=config.block_kv,
            bkv_compute=config.block_kv_compute,
            mask_info=schedule.by_columns(shrink=not is_fused),
            use_fused_bwd_kernel=is_fused,
            **_common(schedule, config),
        )

    dq, dk, dv = _run(launch, schedule, config, inputs)
    fold = folds(schedule).kv
    # Against scaled logits the kernel saw an unscaled query.
    dk = _times(dk, scales(problem)[1])
    gradients = {"dk": fold.from_tokens(dk), "dv": fold.from_tokens(dv)}
    if dq is not None:
        gradients["dq"] = _to_query(schedule, dq)
    return gradients


def _schedule(problem: Problem, config: Launch) -> Schedule:
    return Schedule(problem=problem, block_q=config.block_q, block_kv=config.block_kv)


def _common(schedule: Schedule, config: Launch) -> dict[str, Any]:
    return {
        "is_mqa": False,
        "mask_value": HIDDEN,
        "attn_logits_soft_cap": schedule.problem.soft_cap,
        "q_layout": layout(config.q_layout),
        "k_layout": layout(config.k_layout),
        "v_layout": layout(config.v_layout),
        "mask_function": schedule.mask_function(),
        "interpret": False,
    }


def _without_sinks(arrays: Arrays) -> Arrays:
    # They are in the logsumexp.
    return arrays._replace(sinks=None)


def _run(launch: Any, schedule: Schedule, config: Launch, inputs: BackwardInputs) -> Any:
    fold = folds(schedule).q
    lse = inputs.residuals.lse
    rows = _Rows(
        lse=fold.numbers(jnp.where(jnp.isneginf(lse), _EMPTY, lse), _EMPTY),
        dout=fold.tokens(inputs.dout),
        delta=fold.numbers(inputs.delta, 0.0),
    )
    run = rewritten(
        launch,
        vmem_limit_kib=config.vmem_limit_kib,
        logits_scale=scales(schedule.problem)[1],
    )
    with precision_of(schedule.problem):
        return run(prepare(schedule, inputs.operands), rows)


def _to_query(schedule: Schedule, dq: Array) -> Float[Array, "B T N H"]:
    # The kernel differentiates by the logits' other factor, whichever of both has the scale.
    return folds(schedule).q.from_tokens(_times(dq, schedule.problem.scale))


def _times(x: Array, factor: float) -> Array:
    return x if factor == 1.0 else (x.astype(jnp.float32) * factor).astype(x.dtype)
