"""The backward over tokamax's Mosaic GPU attention: one launch for dq and dbias, one for dk and dv.

The library makes both launches in one call, from one config. It is called once for each part, with the part's own
config; the other launch of that call, of the smallest tile there is, is dropped by the compiler.
"""

import jax
from jaxtyping import Array
from tokamax._src.ops.attention import pallas_mosaic_gpu_vjp as library

from attn_tune.kernels.flash_attention._tokamax.arguments import backward_arguments, gradients
from attn_tune.kernels.flash_attention.tokamax_mosaic.config import (
    BackwardConfig,
    DkvConfig,
    DqConfig,
)
from attn_tune.kernels.lang.libraries.mosaic import WARPGROUP_ROWS
from attn_tune.ops.flash_attention.operands import BackwardInputs
from attn_tune.ops.flash_attention.problem import Problem


def backward(problem: Problem, config: BackwardConfig, inputs: BackwardInputs) -> dict[str, Array]:
    """``dq``, ``dk``, ``dv``, and ``dbias`` if the problem has a bias; each like its primal."""
    of_rows = _launch(problem, config.dq, inputs)
    of_keys = _launch(problem, config.dkv, inputs)
    return of_rows | {name: of_keys[name] for name in ("dk", "dv")}


def library_config(launch: DqConfig | DkvConfig) -> library.Config:
    """The library's config for one part, the other part at its smallest."""
    blocks = dict.fromkeys(("block_q_dq", "block_kv_dq", "block_q_dkv", "block_kv_dkv"), WARPGROUP_ROWS)
    part = "dq" if isinstance(launch, DqConfig) else "dkv"
    blocks |= {f"block_q_{part}": launch.block_q, f"block_kv_{part}": launch.block_kv}
    return library.Config(num_stages=launch.num_stages, compute_wgs=launch.compute_warpgroups, **blocks)


def _launch(problem: Problem, config: DqConfig | DkvConfig, inputs: BackwardInputs) -> dict[str, Array]:
    arrays, given = backward_arguments(problem, inputs)
    # For the library's delta, which is a product outside of its kernels.
    with jax.default_matmul_precision("highest"):
        grads = library.PallasMosaicGpuFlashAttentionVjp(config=library_config(config))(*arrays, **given)
    return gradients(grads, inputs.operands)
