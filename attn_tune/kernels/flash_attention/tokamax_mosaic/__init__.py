"""tokamax's flash attention in Mosaic GPU, on Hopper: persistent, warp-specialised, forward and backward."""

import functools

from attn_tune.kernels.flash_attention.tokamax_mosaic.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.flash_attention.tokamax_mosaic.limits import infeasible, unsupported
from attn_tune.kernels.flash_attention.tokamax_mosaic.space import (
    backward_heuristic,
    dkv_candidates,
    dq_candidates,
    forward_candidates,
    forward_heuristic,
)
from attn_tune.kernels.knobs import first_reason
from attn_tune.kernels.lang.libraries.tokamax import EXTRA, LIBRARY
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.trial import WHOLE

_OP = "attn_tune.kernels.flash_attention"
_LANG = "attn_tune.kernels.lang"
# Larger tiles take more shared memory and more accumulators, more stages more shared memory.
_GROWS = ("block_q", "block_kv", "num_stages")

SPEC = KernelSpec(
    op="flash_attention",
    name="tokamax_mosaic",
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
            outputs={"dq": ("dq", "dbias"), "dkv": ("dk", "dv")},
            infeasible=functools.partial(first_reason, infeasible),
            grows=_GROWS,
        ),
    },
    unsupported=unsupported,
    modules=(
        *(f"{__name__}.{name}" for name in ("backward", "forward")),
        f"{_OP}._tokamax.arguments",
        *(f"{_LANG}.libraries.{name}" for name in ("features", "mosaic", "residuals")),
    ),
    # Below all that has been proven on a GPU: it runs where a sweep has chosen it.
    priority={"cuda": -20},
    requires=(LIBRARY,),
    extra=EXTRA,
    libraries=(LIBRARY,),
    summary="tokamax's flash attention in Mosaic GPU, for Hopper (extra tokamax)",
)
