"""tokamax's flash attention in Pallas-Triton: FlashAttention-2, one launch forward and one backward."""

from attn_tune.kernels.flash_attention.tokamax_triton.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.flash_attention.tokamax_triton.limits import infeasible, unsupported
from attn_tune.kernels.flash_attention.tokamax_triton.space import (
    backward_candidates,
    backward_heuristic,
    forward_candidates,
    forward_heuristic,
)
from attn_tune.kernels.lang.libraries.tokamax import EXTRA, LIBRARY
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.trial import WHOLE

_OP = "attn_tune.kernels.flash_attention"
_LANG = "attn_tune.kernels.lang"

SPEC = KernelSpec(
    op="flash_attention",
    name="tokamax_triton",
    backend="triton",
    searches={
        "fwd": Search(
            config=ForwardConfig,
            heuristic=forward_heuristic,
            candidates={WHOLE: forward_candidates},
            call=f"{__name__}.forward:forward",
            outputs={WHOLE: ("out", "lse")},
            infeasible=infeasible,
            # Larger tiles take more shared memory and more accumulators, more stages more shared memory.
            grows=("block_q", "block_k", "num_stages"),
        ),
        "bwd": Search(
            config=BackwardConfig,
            heuristic=backward_heuristic,
            candidates={WHOLE: backward_candidates},
            call=f"{__name__}.backward:backward",
            outputs={WHOLE: ("dq", "dk", "dv", "dbias")},
            infeasible=infeasible,
            grows=("block_m1", "block_n1", "block_m2", "block_n2", "num_stages"),
        ),
    },
    unsupported=unsupported,
    modules=(
        *(f"{__name__}.{name}" for name in ("backward", "forward")),
        f"{_OP}._tokamax.arguments",
        *(f"{_LANG}.libraries.{name}" for name in ("features", "residuals")),
    ),
    # Below all that has been proven on a GPU: it runs where a sweep has chosen it.
    priority={"cuda": -30},
    requires=(LIBRARY,),
    extra=EXTRA,
    libraries=(LIBRARY,),
    summary="tokamax's flash attention in Pallas-Triton (extra tokamax)",
)
