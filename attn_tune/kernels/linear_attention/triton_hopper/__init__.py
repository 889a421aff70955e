"""Linear attention for Hopper, in Triton's Gluon: walks hold states in registers, turned, and one warp copies."""

from attn_tune.kernels.lang.gluon.chunks.limits import unsupported
from attn_tune.kernels.linear_attention.triton_hopper import space
from attn_tune.kernels.linear_attention.triton_hopper.config import Config
from attn_tune.kernels.linear_attention.triton_hopper.limits import infeasible
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

SPEC = KernelSpec(
    op="linear_attention",
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
    summary="the forward for Hopper in Gluon: states in registers from chunk to chunk, chunks by descriptor",
)
