"""Sparse latent attention in Triton: keys are gathered by index into the tile that both products read."""

from attn_tune.kernels.sparse_mla.triton import space
from attn_tune.kernels.sparse_mla.triton.config import Config
from attn_tune.kernels.sparse_mla.triton.limits import infeasible, unsupported
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

SPEC = KernelSpec(
    op="sparse_mla",
    name="triton",
    backend="triton",
    searches={
        "fwd": Search(
            config=Config,
            heuristic=space.heuristic,
            candidates={WHOLE: space.candidates},
            infeasible=infeasible,
            adapt=space.adapt,
            call=f"{__name__}.forward:forward",
            # Larger tiles take more shared memory and more registers, more stages more shared memory.
            grows=("block_n", "block_k", "num_stages"),
        ),
    },
    unsupported=unsupported,
    priority={"cuda": 10},
    requires=("triton",),
    extra="cuda",
    summary="sparse latent attention in Triton: keys gathered by index into the tile that both products read",
)
