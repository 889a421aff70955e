"""The backward of flash attention in one Triton launch: fewer products than in two, and dq by atomics."""

from attn_tune.kernels.flash_attention import searches
from attn_tune.kernels.flash_attention.triton_fused import space
from attn_tune.kernels.flash_attention.triton_fused.config import BackwardConfig
from attn_tune.kernels.flash_attention.triton_fused.limits import infeasible, unsupported
from attn_tune.kernels.spec import KernelSpec

SPEC = KernelSpec(
    op="flash_attention",
    name="triton_fused",
    backend="triton",
    searches={
        "bwd": searches.backward(
            __name__,
            BackwardConfig,
            heuristic=space.heuristic,
            candidates=space.candidates,
            infeasible=infeasible,
            adapt=space.adapt,
            # Larger tiles take more shared memory and more accumulators, more stages more shared memory.
            grows=("block_q", "block_k", "num_stages"),
            nondeterministic="dq is summed by atomics, in an order that differs from run to run",
        ),
    },
    unsupported=unsupported,
    requires=("triton",),
    summary="the backward in one Triton launch: five products a tile instead of seven; every feature; sm_80 and later",
)
