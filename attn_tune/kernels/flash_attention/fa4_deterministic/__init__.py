"""The backward of FlashAttention-4 on Hopper whose sums have a fixed order, kept by counters in device memory."""

from attn_tune.kernels.flash_attention import searches
from attn_tune.kernels.flash_attention._fa4 import limits, space
from attn_tune.kernels.flash_attention._fa4.config import BackwardConfig
from attn_tune.kernels.spec import KernelSpec

SPEC = KernelSpec(
    op="flash_attention",
    name="fa4_deterministic",
    backend="cute",
    searches={
        "bwd": searches.backward(
            __name__,
            BackwardConfig,
            heuristic=space.backward_heuristic,
            candidates=space.backward_candidates,
            outputs=("dq", "dk", "dv"),
            infeasible=limits.backward_infeasible,
            grows=("block_q", "block_k", "stages"),
        ),
    },
    unsupported=limits.unsupported,
    # Behind all but where it won races (``untuned.py``), and where a sweep has chosen it.
    requires=limits.MODULES,
    extra=limits.EXTRA,
    libraries=limits.LIBRARIES,
    summary="the backward of FlashAttention-4 with sums in a fixed order, for Hopper (extra fa4)",
)
