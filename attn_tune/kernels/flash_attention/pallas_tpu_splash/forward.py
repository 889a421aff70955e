"""The forward over JAX's splash attention: what the op asks for and the kernel does not do by itself."""

import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jaxtyping import Array

from attn_tune.kernels.flash_attention._splash.arrays import (
    HIDDEN,
    Arrays,
    folds,
    layout,
    prepare,
    scales,
)
from attn_tune.kernels.flash_attention._splash.schedule import Schedule
from attn_tune.kernels.flash_attention.pallas_tpu_splash.config import ForwardConfig
from attn_tune.kernels.lang.pallas_tpu.precision import precision_of
from attn_tune.kernels.lang.pallas_tpu.rewrite import rewritten
from attn_tune.ops.flash_attention.operands import Operands
from attn_tune.ops.flash_attention.problem import Problem


def forward(problem: Problem, config: ForwardConfig, operands: Operands) -> dict[str, Array]:
    """``out`` [B, T, N, V] in the query's dtype and ``lse`` [B, N, T] in float32."""
    schedule = Schedule(problem=problem, block_q=config.block_q, block_kv=config.block_kv)

    def launch(arrays: Arrays) -> tuple[Array, Array]:
        out, (lse,) = splash._splash_attention_forward(
            schedule.by_rows(),
            *arrays,
            mask_value=HIDDEN,
            is_mqa=False,
            block_sizes=splash.BlockSizes(
                block_q=config.block_q,
                block_kv=config.block_kv,
                block_kv_compute=config.block_kv_compute,
                q_layout=layout(config.q_layout),
                k_layout=layout(config.k_layout),
                v_layout=layout(config.v_layout),
            ),
            residual_checkpoint_name=None,
            save_residuals=True,
            mask_function=schedule.mask_function(),
            attn_logits_soft_cap=problem.soft_cap,
        )
        return out, lse

    _, logits_scale = scales(problem)
    run = rewritten(launch, vmem_limit_kib=config.vmem_limit_kib, logits_scale=logits_scale)
    with precision_of(problem):
        out, lse = run(prepare(schedule, operands))
    fold = folds(schedule).q
    out, lse = fold.from_tokens(out), fold.from_numbers(lse)
    # Not a number where not even a block was visited, the mean of all values where the visited ones were hidden.
    empty = jnp.isnan(lse) | (lse < 0.5 * HIDDEN)
    out = jnp.where(empty.swapaxes(1, 2)[..., None], 0, out)
    return {"out": out.astype(operands.q.dtype), "lse": jnp.where(empty, -jnp.inf, lse)}
