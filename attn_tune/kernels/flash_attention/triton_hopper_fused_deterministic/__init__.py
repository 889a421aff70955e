"""The backward of flash attention for Hopper in one launch, in Triton's Gluon, whose sums have a fixed order."""

from attn_tune.kernels.flash_attention import searches
from attn_tune.kernels.flash_attention._hopper_fused import limits, space
from attn_tune.kernels.flash_attention._hopper_fused.config import BackwardConfig
from attn_tune.kernels.spec import KernelSpec

SPEC = KernelSpec(
    op="flash_attention",
    name="triton_hopper_fused_deterministic",
    backend="triton",
    searches={
        "bwd": searches.backward(
            __name__,
            BackwardConfig,
            heuristic=space.heuristic,
            candidates=space.ordered_candidates,
            infeasible=limits.ordered_infeasible,
            adapt=space.adapt,
            outputs=("dq", "dk", "dv"),
            # More stages take more shared memory.
            grows=("num_stages",),
        ),
    },
    unsupported=limits.ordered_unsupported,
    requires=("triton",),
    summary="triton_hopper_fused with dq summed in the order of the keys, kept by counters in device memory",
)
