"""cuDNN's fused attention. NVIDIA chooses the tiles; there is nothing to tune, but it must be beaten to be left."""

from attn_tune.kernels.flash_attention.cudnn.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.flash_attention.cudnn.limits import unsupported
from attn_tune.kernels.spec import KernelSpec, Search

SPEC = KernelSpec(
    op="flash_attention",
    name="cudnn",
    backend="cudnn",
    searches={
        "fwd": Search(
            config=ForwardConfig,
            heuristic=lambda problem, device: ForwardConfig(),
            candidates={"": lambda problem, device: (ForwardConfig(),)},
            call=f"{__name__}.kernel:forward",
        ),
        "bwd": Search(
            config=BackwardConfig,
            heuristic=lambda problem, device: BackwardConfig(),
            candidates={"": lambda problem, device: (BackwardConfig(),)},
            call=f"{__name__}.kernel:backward",
            # The call does not set force_deterministic, and no part of cuDNN's contract promises it without.
            nondeterministic="cuDNN may choose an algorithm that sums dq by atomics",
        ),
    },
    unsupported=unsupported,
    summary="cuDNN fused attention (closed source, no knobs)",
)
