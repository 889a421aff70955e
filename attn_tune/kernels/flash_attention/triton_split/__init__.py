"""Flash attention of short queries over long keys in Triton: a group in one tile, its keys split over programs."""

from attn_tune.kernels.flash_attention import searches
from attn_tune.kernels.flash_attention.triton_split import space
from attn_tune.kernels.flash_attention.triton_split.config import ForwardConfig
from attn_tune.kernels.flash_attention.triton_split.limits import infeasible, unsupported
from attn_tune.kernels.spec import KernelSpec

SPEC = KernelSpec(
    op="flash_attention",
    name="triton_split",
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
            grows=("block_q", "block_k", "num_stages"),
        ),
    },
    unsupported=unsupported,
    requires=("triton",),
    summary="a forward in Triton for short queries and long keys: groups packed, keys split, parts combined",
)
