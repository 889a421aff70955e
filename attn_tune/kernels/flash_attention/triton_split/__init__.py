"""Flash attention of short queries over long keys in Triton: a group in one tile, its keys split over programs."""

import functools

from attn_tune.kernels.flash_attention import searches
from attn_tune.kernels.flash_attention.triton_split import space
from attn_tune.kernels.flash_attention.triton_split.config import ForwardConfig
from attn_tune.kernels.flash_attention.triton_split.limits import infeasible, unsupported
from attn_tune.kernels.flash_attention.untuned import priority
from attn_tune.kernels.lang.triton import BRIDGE
from attn_tune.kernels.spec import KernelSpec

_DEVICE = "attn_tune.kernels.lang.triton.device"

SPEC = KernelSpec(
    op="flash_attention",
    name="triton_split",
    backend="triton",
    searches={
        "fwd": searches.forward(
            __name__,
            ForwardConfig,
            heuristic=space.heuristic,
            candidates=space.candidates,
            infeasible=infeasible,
            adapt=space.adapt,
            # Larger tiles take more shared memory and more registers, more stages more shared memory.
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
