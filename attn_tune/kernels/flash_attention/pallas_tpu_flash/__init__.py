"""JAX's flash attention for TPU: the dense kernel in Pallas, with a bias and its gradient."""

from attn_tune.kernels.flash_attention import searches
from attn_tune.kernels.flash_attention.pallas_tpu_flash import space
from attn_tune.kernels.flash_attention.pallas_tpu_flash.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.flash_attention.pallas_tpu_flash.limits import infeasible, unsupported
from attn_tune.kernels.spec import KernelSpec

# Larger blocks take more VMEM.
_GROWS = ("block_q", "block_k_major", "block_k")

SPEC = KernelSpec(
    op="flash_attention",
    name="pallas_tpu_flash",
    backend="pallas_tpu",
    searches={
        "fwd": searches.forward(
            __name__,
            ForwardConfig,
            heuristic=space.forward_heuristic,
            candidates=space.forward_candidates,
            adapt=space.adapt_forward,
            infeasible=infeasible,
            grows=_GROWS,
        ),
        "bwd": searches.backward_in_parts(
            __name__,
            BackwardConfig,
            heuristic=space.backward_heuristic,
            dq=space.dq_candidates,
            dkv=space.dkv_candidates,
            adapt=space.adapt_backward,
            infeasible=infeasible,
            grows=_GROWS,
            has_dbias=True,
        ),
    },
    unsupported=unsupported,
    summary="JAX's flash attention for TPU: dense, with bias and its gradient",
)
