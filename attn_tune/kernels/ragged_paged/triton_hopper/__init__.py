"""Ragged attention for Hopper, in Triton's Gluon: one warp copies pages while others multiply."""

from attn_tune.kernels.ragged_paged.triton_hopper import space
from attn_tune.kernels.ragged_paged.triton_hopper.config import Config
from attn_tune.kernels.ragged_paged.triton_hopper.limits import infeasible, unsupported
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

SPEC = KernelSpec(
    op="ragged_paged",
    name="triton_hopper",
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
            grows=("block_k", "num_stages", "decode_block_k"),
        ),
    },
    unsupported=unsupported,
    priority={"cuda": space.place},
    requires=("triton",),
    extra="cuda",
    summary="ragged attention for Hopper in Gluon: pages by descriptor, warp specialised, decoding in its own launch",
)
