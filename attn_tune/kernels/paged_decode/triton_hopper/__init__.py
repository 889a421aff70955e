"""Decoding over latents for Hopper, in Triton's Gluon: one warp copies pages, two groups of warps share the output."""

from attn_tune.kernels.paged_decode.triton_hopper import space
from attn_tune.kernels.paged_decode.triton_hopper.config import Config
from attn_tune.kernels.paged_decode.triton_hopper.limits import infeasible, unsupported
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

SPEC = KernelSpec(
    op="paged_decode",
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
            # More stages take more shared memory.
            grows=("num_stages",),
        ),
    },
    unsupported=unsupported,
    priority={"cuda": space.place},
    requires=("triton",),
    extra="cuda",
    summary="decoding over latents for Hopper in Gluon: pages by descriptor, the output's columns shared by two groups",
)
