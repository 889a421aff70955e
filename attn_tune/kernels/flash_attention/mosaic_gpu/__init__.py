"""JAX's own flash attention in Mosaic GPU, for Hopper: FlashAttention-3 with two warpgroups that take turns."""

import functools

from attn_tune.kernels.flash_attention.mosaic_gpu.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.flash_attention.mosaic_gpu.limits import infeasible, unsupported
from attn_tune.kernels.flash_attention.mosaic_gpu.space import (
    backward_heuristic,
    dkv_candidates,
    dq_candidates,
    forward_candidates,
    forward_heuristic,
)
from attn_tune.kernels.knobs import first_reason
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.trial import WHOLE

_SHARED = "attn_tune.kernels.lang.libraries"
# Larger tiles take more shared memory and more accumulators, more steps more shared memory.
_GROWS = ("block_q", "block_kv", "max_concurrent_steps")

SPEC = KernelSpec(
    op="flash_attention",
    name="mosaic_gpu",
    backend="mosaic_gpu",
    searches={
        "fwd": Search(
            config=ForwardConfig,
            heuristic=forward_heuristic,
            candidates={WHOLE: forward_candidates},
            call=f"{__name__}.forward:forward",
            outputs={WHOLE: ("out", "lse")},
            infeasible=infeasible,
            grows=_GROWS,
        ),
        "bwd": Search(
            config=BackwardConfig,
            heuristic=backward_heuristic,
            candidates={"dq": dq_candidates, "dkv": dkv_candidates},
            call=f"{__name__}.backward:backward",
            outputs={"dq": ("dq",), "dkv": ("dk", "dv")},
            infeasible=functools.partial(first_reason, infeasible),
            grows=_GROWS,
        ),
    },
    unsupported=unsupported,
    modules=(
        *(f"{__name__}.{name}" for name in ("backward", "forward", "library")),
        *(f"{_SHARED}.{name}" for name in ("features", "mosaic", "residuals")),
    ),
    # Below all that has been proven on a GPU: it runs where a sweep has chosen it.
    priority={"cuda": -10},
    summary="JAX's flash attention in Mosaic GPU, for Hopper; backward without a causal mask",
)
