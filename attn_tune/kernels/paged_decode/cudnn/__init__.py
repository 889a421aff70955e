"""cuDNN's attention over pages. NVIDIA chooses the tiles and the splits; there is nothing to tune."""

from attn_tune.kernels.paged_decode.cudnn.config import Config
from attn_tune.kernels.paged_decode.cudnn.limits import unsupported
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

SPEC = KernelSpec(
    op="paged_decode",
    name="cudnn",
    backend="cudnn",
    searches={
        "fwd": Search(
            config=Config,
            heuristic=lambda problem, device: Config(),
            candidates={WHOLE: lambda problem, device: (Config(),)},
            call=f"{__name__}.kernel:forward",
        ),
    },
    unsupported=unsupported,
    # Where no sweep has proven it the other kernels come first, the one of XLA too.
    priority={"cuda": -1},
    summary="cuDNN over whole pages, the tokens of the last one by XLA (closed source, no knobs)",
)
