"""The forward over JAX's Mosaic GPU attention."""

from jax.experimental.pallas.ops.gpu.attention_mgpu import TuningConfig
from jaxtyping import Array

from attn_tune.kernels.flash_attention.mosaic_gpu.config import ForwardConfig
from attn_tune.kernels.flash_attention.mosaic_gpu.library import forward_of
from attn_tune.kernels.lang.libraries.features import visible_bounds
from attn_tune.kernels.lang.libraries.residuals import LN2, with_sinks
from attn_tune.ops.flash_attention.operands import Operands
from attn_tune.ops.flash_attention.problem import Problem


def forward(problem: Problem, config: ForwardConfig, operands: Operands) -> dict[str, Array]:
    """``out`` [B, T, N, V] in the query's dtype and ``lse`` [B, N, T] in float32."""
    launch = forward_of(problem, pipeline_emitter=config.pipeline_emitter)
    out, (lse,) = launch(operands.q, operands.k, operands.v, tuning_config(problem, config), save_residuals=True)
    return with_sinks(out, lse * LN2, operands.sinks)


def tuning_config(problem: Problem, config: ForwardConfig) -> TuningConfig:
    """The library's config."""
    return TuningConfig(
        block_q=config.block_q,
        block_kv=config.block_kv,
        max_concurrent_steps=config.max_concurrent_steps,
        use_schedule_barrier=config.schedule_barrier,
        causal=visible_bounds(problem)[1] is not None,
    )
