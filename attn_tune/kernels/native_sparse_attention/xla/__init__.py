"""Attention to selected blocks left to XLA: every feature, on every platform."""

from attn_tune.kernels.native_sparse_attention.xla import space
from attn_tune.kernels.native_sparse_attention.xla.config import Config
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

SPEC = KernelSpec(
    op="native_sparse_attention",
    name="xla",
    backend="xla",
    searches={
        "fwd": Search(
            config=Config,
            heuristic=space.heuristic,
            candidates={WHOLE: space.candidates},
            call=f"{__name__}.forward:forward",
        ),
        "bwd": Search(
            config=Config,
            heuristic=space.heuristic,
            candidates={WHOLE: space.candidates},
            call=f"{__name__}.backward:backward",
        ),
    },
    unsupported=lambda problem, direction, device: None,
    summary="blocks gathered for some queries at a time, queries gathered for each block; every platform",
)
