"""Updates of a cache left to XLA: every feature, on every platform."""

from attn_tune.kernels.paged_append.xla.config import Config
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

SPEC = KernelSpec(
    op="paged_append",
    name="xla",
    backend="xla",
    searches={
        "fwd": Search(
            config=Config,
            heuristic=lambda problem, device: Config(),
            candidates={WHOLE: lambda problem, device: (Config(),)},
            call=f"{__name__}.kernel:forward",
        )
    },
    unsupported=lambda problem, direction, device: None,
    summary="updates of a cache as scatters of XLA; every feature, on every platform",
)
