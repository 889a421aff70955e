"""Merges in Triton: one pass over all parts."""

from attn_tune.kernels.merge_attention.triton import space
from attn_tune.kernels.merge_attention.triton.config import Config
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

SPEC = KernelSpec(
    op="merge_attention",
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
    summary="merges of attention in Triton: one pass over all parts",
)
