"""The backward of flash attention for Hopper in one launch, in Triton's Gluon: copies, products and dq side by side."""

from attn_tune.kernels.flash_attention import searches
from attn_tune.kernels.flash_attention.triton_hopper_fused import space
from attn_tune.kernels.flash_attention.triton_hopper_fused.config import BackwardConfig
from attn_tune.kernels.flash_attention.triton_hopper_fused.limits import infeasible, unsupported
from attn_tune.kernels.spec import KernelSpec

SPEC = KernelSpec(
    op="flash_attention",
    name="triton_hopper_fused",
    backend="triton",
    searches={
        "bwd": searches.backward(
            __name__,
            BackwardConfig,
            heuristic=space.heuristic,
            candidates=space.candidates,
            infeasible=infeasible,
            adapt=space.adapt,
            # More stages take more shared memory.
            grows=("num_stages",),
            nondeterministic="dq is summed by atomics, in an order that differs from run to run",
        ),
    },
    unsupported=unsupported,
    requires=("triton",),
    summary="a backward for Hopper in Gluon: copies by descriptor, warp specialised, five products, dq added by copies",
)
