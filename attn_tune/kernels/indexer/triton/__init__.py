"""The indexer in Triton: products of heads with keys are weighed and added up in registers."""

from attn_tune.kernels.indexer.triton import space
from attn_tune.kernels.indexer.triton.config import Config
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

SPEC = KernelSpec(
    op="indexer",
    name="triton",
    backend="triton",
    searches={
        "fwd": Search(
            config=Config,
            heuristic=space.heuristic,
            candidates={WHOLE: space.candidates},
            infeasible=space.infeasible,
            adapt=space.adapt,
            call=f"{__name__}.forward:forward",
            # More keys of a tile take more shared memory and registers, more stages more shared memory.
            grows=("block_k", "num_stages"),
        ),
    },
    unsupported=space.unsupported,
    priority={"cuda": 10},
    requires=("triton",),
    extra="cuda",
    summary="the indexer in Triton: products of heads with keys are weighed and added up in registers",
)
