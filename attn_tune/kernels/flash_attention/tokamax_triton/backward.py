"""The backward over tokamax's Pallas-Triton attention: all gradients in one launch."""

import jax
from jaxtyping import Array
from tokamax._src.ops.attention import pallas_triton_vjp as library

from attn_tune.kernels.flash_attention._tokamax.arguments import backward_arguments, gradients
from attn_tune.kernels.flash_attention.tokamax_triton.config import BackwardConfig
from attn_tune.ops.flash_attention.operands import BackwardInputs
from attn_tune.ops.flash_attention.problem import Problem


def backward(problem: Problem, config: BackwardConfig, inputs: BackwardInputs) -> dict[str, Array]:
    """``dq``, ``dk``, ``dv``, and ``dbias`` if the problem has a bias; each like its primal."""
    arrays, given = backward_arguments(problem, inputs)
    # For the library's delta, which is a product outside of its kernel.
    with jax.default_matmul_precision("highest"):
        grads = library.PallasTritonFlashAttentionVjp(config=library_config(config))(*arrays, **given)
    return gradients(grads, inputs.operands)


def library_config(config: BackwardConfig) -> library.Config:
    """The library's config."""
    return library.Config(
        block_m1=config.block_m1,
        block_n1=config.block_n1,
        block_m2=config.block_m2,
        block_n2=config.block_n2,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
