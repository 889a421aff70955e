"""The backward of flash attention in one Triton launch: fewer products than in two, and dq by atomics."""

from attn_tune.kernels.flash_attention.triton_fused.config import BackwardConfig
from attn_tune.kernels.flash_attention.triton_fused.limits import infeasible, unsupported
from attn_tune.kernels.flash_attention.triton_fused.space import adapt, candidates, heuristic
from attn_tune.kernels.lang.triton import BRIDGE
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.trial import WHOLE

_DEVICE = "attn_tune.kernels.lang.triton.device"

SPEC = KernelSpec(
    op="flash_attention",
    name="triton_fused",
    backend="triton",
    searches={
        "bwd": Search(
            config=BackwardConfig,
            heuristic=heuristic,
            candidates={WHOLE: candidates},
            call=f"{__name__}.backward:backward",
            outputs={WHOLE: ("dq", "dk", "dv", "dbias")},
            infeasible=infeasible,
            adapt=adapt,
            # Larger tiles take more shared memory and more accumulators, more stages more shared memory.
            grows=("block_q", "block_k", "num_stages"),
            nondeterministic="dq is summed by atomics, in an order that differs from run to run",
        ),
    },
    unsupported=unsupported,
    modules=(
        *(f"{__name__}.{name}" for name in ("backward", "config")),
        *(
            f"attn_tune.kernels.flash_attention._triton.{name}"
            for name in ("arrays", "backward_dbias")
        ),
        *(f"{_DEVICE}.{name}" for name in ("backward", "logits", "ranges", "static", "tile")),
        *BRIDGE,
    ),
    priority={"cuda": 40},
    requires=("triton",),
    summary="the backward in one Triton launch: five products a tile instead of seven; every feature; sm_80 and later",
)
