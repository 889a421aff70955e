"""Block-sparse attention's forward for Hopper, in Triton's Gluon: the dense forward's warps, which walk lists."""

from attn_tune.kernels.block_sparse_attention.triton_hopper import space
from attn_tune.kernels.block_sparse_attention.triton_hopper.limits import infeasible, unsupported
from attn_tune.kernels.lang.gluon.attention.config import ForwardConfig
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

SPEC = KernelSpec(
    op="block_sparse_attention",
    name="triton_hopper",
    backend="triton",
    searches={
        "fwd": Search(
            config=ForwardConfig,
            heuristic=space.heuristic,
            candidates={WHOLE: space.candidates},
            infeasible=infeasible,
            adapt=space.adapt,
            call=f"{__name__}.forward:forward",
            # Larger tiles take more shared memory and more registers, more stages more shared memory.
            grows=("block_k", "num_stages"),
        ),
    },
    unsupported=unsupported,
    priority={"cuda": space.place},
    requires=("triton",),
    extra="cuda",
    summary="a forward for Hopper in Gluon: lists of tiles copied by descriptor, warp specialised; Triton 3.9",
)
