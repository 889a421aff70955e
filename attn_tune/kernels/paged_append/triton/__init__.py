"""Updates of a cache in Triton: keys, values and scales in one launch, places read on the device."""

from attn_tune.kernels.paged_append.triton import space
from attn_tune.kernels.paged_append.triton.config import Config
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

SPEC = KernelSpec(
    op="paged_append",
    name="triton",
    backend="triton",
    searches={
        "fwd": Search(
            config=Config,
            heuristic=space.heuristic,
            candidates={WHOLE: space.candidates},
            call=f"{__name__}.forward:forward",
        ),
    },
    unsupported=space.unsupported,
    priority={"cuda": 10},
    requires=("triton",),
    extra="cuda",
    summary="updates of a cache in Triton: keys, values and their scales in one launch",
)
