"""Flash attention's forward for Hopper, in Triton's Gluon: warps that copy and warps that multiply, side by side."""

from attn_tune.kernels.flash_attention import searches
from attn_tune.kernels.flash_attention.triton_hopper import space
from attn_tune.kernels.flash_attention.triton_hopper.limits import infeasible, unsupported
from attn_tune.kernels.lang.gluon.attention.config import ForwardConfig
from attn_tune.kernels.spec import KernelSpec

SPEC = KernelSpec(
    op="flash_attention",
    name="triton_hopper",
    backend="triton",
    searches={
        "fwd": searches.forward(
            __name__,
            ForwardConfig,
            heuristic=space.heuristic,
            candidates=space.candidates,
            infeasible=infeasible,
            adapt=space.adapt,
            # Larger tiles take more shared memory and more registers, more stages more shared memory.
            grows=("block_k", "num_stages"),
        ),
    },
    unsupported=unsupported,
    requires=("triton",),
    summary="a forward for Hopper in Gluon: copies by descriptor, warp specialised, products beside the softmax",
)
