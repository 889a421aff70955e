"""The forward over JAX's splash attention: what the op asks for and the kernel does not do by itself."""

import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jaxtyping import Array

from attn_tune.kernels.block_sparse_attention.pallas_tpu_splash.arrays import (
    HIDDEN,
    Arrays,
    folds,
    launched,
    prepare,
)
from attn_tune.kernels.block_sparse_attention.pallas_tpu_splash.config import ForwardConfig
from attn_tune.kernels.block_sparse_attention.pallas_tpu_splash.tables import (
    Tables,
    mask_function,
    mask_info,
    tables_of,
)
from attn_tune.ops.block_sparse_attention.operands import Operands
from attn_tune.ops.block_sparse_attention.problem import Problem


def forward(problem: Problem, config: ForwardConfig, operands: Operands) -> dict[str, Array]:
    """``out`` [B, T, N, V] in the query's dtype and ``lse`` [B, N, T] in float32."""

    def launch(tables: Tables, arrays: Arrays) -> tuple[Array, Array]:
        out, (lse,) = splash._splash_attention_forward(
            mask_info(problem, config, tables),
            *arrays,
            mask_value=HIDDEN,
            is_mqa=False,
            block_sizes=splash.BlockSizes(
                block_q=config.block_q, block_kv=config.block_kv, block_kv_compute=config.block_kv_compute
            ),
            residual_checkpoint_name=None,
            save_residuals=True,
            mask_function=mask_function(problem, config),
            attn_logits_soft_cap=problem.soft_cap,
        )
        return out, lse

    tables = tables_of(problem, config, operands.block_mask, by_columns=False)
    out, lse = launched(problem, config, launch, tables, prepare(problem, config, operands))
    fold = folds(problem, config)[0]
    out, lse = fold.from_tokens(out), fold.from_numbers(lse)
    # Not a number where not even a block was visited, the mean of all values where the visited ones were hidden.
    empty = jnp.isnan(lse) | (lse < 0.5 * HIDDEN)
    out = jnp.where(empty.swapaxes(1, 2)[..., None], 0, out)
    return {"out": out.astype(operands.q.dtype), "lse": jnp.where(empty, -jnp.inf, lse)}
