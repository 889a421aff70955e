"""Decoding over a cache in Triton: groups packed into one tile, keys shared out on the device by the lengths."""

from attn_tune.kernels.paged_decode._triton.config import Config
from attn_tune.kernels.paged_decode.triton import space
from attn_tune.kernels.paged_decode.triton.limits import infeasible, unsupported
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

SPEC = KernelSpec(
    op="paged_decode",
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
            # Larger tiles take more shared memory and more registers, more stages more shared memory. Eight rows may
            # take more than 16: they are another product.
            grows=("block_k", "num_stages"),
        ),
    },
    unsupported=unsupported,
    priority={"cuda": 10},
    requires=("triton",),
    extra="cuda",
    summary="decoding in Triton: groups packed, keys shared out on the device by the lengths, parts combined",
)
