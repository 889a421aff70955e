"""Flash attention in Triton, for NVIDIA GPUs from Ampere on: FlashAttention-2 with every feature of the op."""

from attn_tune.kernels.flash_attention import searches
from attn_tune.kernels.flash_attention._triton.limits import infeasible, unsupported
from attn_tune.kernels.flash_attention.triton import adapt, heuristic, space
from attn_tune.kernels.flash_attention.triton.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.spec import KernelSpec

# Larger tiles take more shared memory and more accumulators, more stages more shared memory.
_GROWS = ("block_q", "block_k", "num_stages")


SPEC = KernelSpec(
    op="flash_attention",
    name="triton",
    backend="triton",
    searches={
        "fwd": searches.forward(
            __name__,
            ForwardConfig,
            heuristic=heuristic.forward_heuristic,
            candidates=space.forward_candidates,
            adapt=adapt.adapt_forward,
            infeasible=infeasible,
            grows=_GROWS,
        ),
        "bwd": searches.backward_in_parts(
            __name__,
            BackwardConfig,
            heuristic=heuristic.backward_heuristic,
            dq=space.dq_candidates,
            dkv=space.dkv_candidates,
            adapt=adapt.adapt_backward,
            infeasible=infeasible,
            grows=_GROWS,
        ),
    },
    unsupported=unsupported,
    requires=("triton",),
    summary="FlashAttention-2 in Triton: fp16, bf16, fp32; every feature; sm_80 and later",
)
