"""Ragged attention over latents for Hopper: queries as sequences of their own, decoded by the kernel in Gluon."""

from attn_tune.kernels.paged_decode.triton_hopper.config import Config
from attn_tune.kernels.ragged_paged.triton_hopper_latent import space
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

SPEC = KernelSpec(
    op="ragged_paged",
    name="triton_hopper_latent",
    backend="triton",
    searches={
        "fwd": Search(
            config=Config,
            heuristic=space.heuristic,
            candidates={WHOLE: space.candidates},
            infeasible=space.infeasible,
            adapt=space.adapt,
            call=f"{__name__}.forward:forward",
            # More stages take more shared memory.
            grows=("num_stages",),
        ),
    },
    unsupported=space.unsupported,
    priority={"cuda": space.place},
    requires=("triton",),
    extra="cuda",
    summary="ragged attention over latents for Hopper in Gluon: rows of 64, decoded as sequences of their own",
)
