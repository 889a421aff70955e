"""Flash attention's forward for Hopper, in Triton's Gluon: warps that copy and warps that multiply, side by side."""

from attn_tune.kernels.flash_attention.triton_hopper.config import ForwardConfig
from attn_tune.kernels.flash_attention.triton_hopper.limits import infeasible, unsupported
from attn_tune.kernels.flash_attention.triton_hopper.space import candidates, heuristic
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.trial import WHOLE

_COMMON = "attn_tune.kernels._common"
_SHARED = "attn_tune.kernels.flash_attention.triton"

SPEC = KernelSpec(
    op="flash_attention",
    name="triton_hopper",
    backend="triton",
    searches={
        "fwd": Search(
            config=ForwardConfig,
            heuristic=heuristic,
            candidates={WHOLE: candidates},
            call=f"{__name__}.forward:forward",
            outputs={WHOLE: ("out", "lse")},
            infeasible=infeasible,
            # Larger tiles take more shared memory and more registers, more stages more shared memory.
            grows=("block_k", "num_stages"),
        ),
    },
    unsupported=unsupported,
    modules=(
        *(
            f"{__name__}.{module}"
            for module in (
                "config",
                "forward",
                "logits",
                "partitions",
                "plan",
                "schedule",
                "steps",
                "tiles",
            )
        ),
        "attn_tune.kernels.padding",
        f"{_SHARED}.ranges",
        f"{_SHARED}.static",
        *(
            f"{_COMMON}.{module}"
            for module in (
                "triton_call",
                "triton_compile",
                "triton_compiled",
                "triton_image",
                "triton_launch",
                "triton_zeroed",
            )
        ),
    ),
    # Above cuDNN: faster on every problem measured on an H200 (benchmarks/results/h200/hopper_over_cudnn.md).
    priority={"cuda": 63},
    requires=("triton",),
    summary="a forward for Hopper in Gluon: copies by descriptor, warp specialised, products beside the softmax",
)
