"""Flash attention of short queries over long keys in Triton: a group in one tile, its keys split over programs."""

import functools

from attn_tune.kernels.flash_attention.triton_split.config import ForwardConfig
from attn_tune.kernels.flash_attention.triton_split.limits import infeasible, unsupported
from attn_tune.kernels.flash_attention.triton_split.space import adapt, candidates, heuristic
from attn_tune.kernels.flash_attention.untuned import priority
from attn_tune.kernels.lang.triton import BRIDGE
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.trial import WHOLE

_DEVICE = "attn_tune.kernels.lang.triton.device"

SPEC = KernelSpec(
    op="flash_attention",
    name="triton_split",
    backend="triton",
    searches={
        "fwd": Search(
            config=ForwardConfig,
            heuristic=heuristic,
            candidates={WHOLE: candidates},
            call=f"{__name__}.forward:forward",
            outputs={WHOLE: ("out", "lse")},
            infeasible=infeasible,
            adapt=adapt,
            # Larger tiles take more shared memory and more accumulators, more stages more shared memory.
            grows=("block_q", "block_k", "num_stages"),
        ),
    },
    unsupported=unsupported,
    modules=(
        *(f"{__name__}.{name}" for name in ("combine", "config", "forward", "packed")),
        *(f"{_DEVICE}.{name}" for name in ("logits", "softmax", "static", "tile")),
        *BRIDGE,
    ),
    priority={"cuda": functools.partial(priority, "triton_split")},
    requires=("triton",),
    summary="a forward in Triton for short queries and long keys: groups packed, keys split, parts combined",
)
