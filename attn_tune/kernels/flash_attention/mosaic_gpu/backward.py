"""The backward over JAX's Mosaic GPU attention: one launch for dq, one for dk and dv.

The library makes both launches in one call, from one config. It is called once for each part, with the part's own
config; the other launch of that call, of the smallest tile there is, is dropped by the compiler.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.gpu.attention_mgpu import TuningConfig
from jaxtyping import Array

from attn_tune.kernels.flash_attention.mosaic_gpu.config import BackwardConfig, DkvConfig, DqConfig
from attn_tune.kernels.flash_attention.mosaic_gpu.library import backward_of
from attn_tune.kernels.lang.libraries.mosaic import WARPGROUP_ROWS
from attn_tune.kernels.lang.libraries.residuals import LN2, own_delta
from attn_tune.ops.flash_attention.operands import BackwardInputs
from attn_tune.ops.flash_attention.problem import Problem


def backward(problem: Problem, config: BackwardConfig, inputs: BackwardInputs) -> dict[str, Array]:
    """``dq``, ``dk`` and ``dv``, each like its primal."""
    dq, _, _ = _launch(problem, config.dq, inputs)
    _, dk, dv = _launch(problem, config.dkv, inputs)
    # The kernel's gradients are those of the scaled logits' factors.
    return {"dq": _scaled(dq, problem), "dk": _scaled(dk, problem), "dv": dv}


def tuning_config(launch: DqConfig | DkvConfig) -> TuningConfig:
    """The library's config for one part, the other part at its smallest."""
    blocks: dict[str, Any] = dict.fromkeys(("block_q_dq", "block_kv_dq", "block_q_dkv", "block_kv_dkv"), WARPGROUP_ROWS)
    part = "dq" if isinstance(launch, DqConfig) else "dkv"
    blocks |= {f"block_q_{part}": launch.block_q, f"block_kv_{part}": launch.block_kv}
    return TuningConfig(
        block_q=launch.block_q,
        block_kv=launch.block_kv,
        max_concurrent_steps=launch.max_concurrent_steps,
        compute_wgs_bwd=launch.compute_warpgroups,
        **blocks,
    )


def _launch(problem: Problem, config: DqConfig | DkvConfig, inputs: BackwardInputs):
    out, dout = own_delta(problem.has_lse_gradient, inputs.residuals.out, inputs.dout, inputs.delta)
    q, k, v = inputs.operands.q, inputs.operands.k, inputs.operands.v
    residuals = (q, k, v, out, inputs.residuals.lse / LN2)
    # For the library's delta, which is a product outside of its kernels.
    with jax.default_matmul_precision("highest"):
        return backward_of(problem)(tuning_config(config), True, residuals, dout)


def _scaled(grad: Array, problem: Problem) -> Array:
    return (grad.astype(jnp.float32) * problem.scale).astype(grad.dtype)
