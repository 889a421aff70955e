"""JAX's own flash attention in Mosaic GPU, for Hopper: FlashAttention-3 with two warpgroups that take turns."""

from attn_tune.kernels.flash_attention import searches
from attn_tune.kernels.flash_attention.mosaic_gpu import space
from attn_tune.kernels.flash_attention.mosaic_gpu.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.flash_attention.mosaic_gpu.limits import infeasible, unsupported
from attn_tune.kernels.spec import KernelSpec

# Larger tiles take more shared memory and more accumulators, more steps more shared memory.
_GROWS = ("block_q", "block_kv", "max_concurrent_steps")

SPEC = KernelSpec(
    op="flash_attention",
    name="mosaic_gpu",
    backend="mosaic_gpu",
    searches={
        "fwd": searches.forward(
            __name__,
            ForwardConfig,
            heuristic=space.forward_heuristic,
            candidates=space.forward_candidates,
            infeasible=infeasible,
            grows=_GROWS,
        ),
        "bwd": searches.backward_in_parts(
            __name__,
            BackwardConfig,
            heuristic=space.backward_heuristic,
            dq=space.dq_candidates,
            dkv=space.dkv_candidates,
            infeasible=infeasible,
            grows=_GROWS,
        ),
    },
    unsupported=unsupported,
    # Below all that has been proven on a GPU: it runs where a sweep has chosen it.
    summary="JAX's flash attention in Mosaic GPU, for Hopper; backward without a causal mask",
)
