"""tokamax's flash attention in Mosaic GPU, on Hopper: persistent, warp-specialised, forward and backward."""

from attn_tune.kernels.flash_attention import searches
from attn_tune.kernels.flash_attention.tokamax_mosaic import space
from attn_tune.kernels.flash_attention.tokamax_mosaic.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.flash_attention.tokamax_mosaic.limits import infeasible, unsupported
from attn_tune.kernels.lang.libraries.tokamax import EXTRA, LIBRARY
from attn_tune.kernels.spec import KernelSpec

_OP = "attn_tune.kernels.flash_attention"
_LANG = "attn_tune.kernels.lang"
# Larger tiles take more shared memory and more accumulators, more stages more shared memory.
_GROWS = ("block_q", "block_kv", "num_stages")

SPEC = KernelSpec(
    op="flash_attention",
    name="tokamax_mosaic",
    backend="mosaic_gpu",
    searches={
        "fwd": searches.forward(
            __name__,
            ForwardConfig,
            heuristic=space.forward_heuristic,
            candidates=space.forward_candidates,
            infeasible=infeasible,
            grows=_GROWS,
        ),
        "bwd": searches.backward_in_parts(
            __name__,
            BackwardConfig,
            heuristic=space.backward_heuristic,
            dq=space.dq_candidates,
            dkv=space.dkv_candidates,
            infeasible=infeasible,
            grows=_GROWS,
            has_dbias=True,
        ),
    },
    unsupported=unsupported,
    # Below all that has been proven on a GPU: it runs where a sweep has chosen it.
    requires=(LIBRARY,),
    extra=EXTRA,
    libraries=(LIBRARY,),
    summary="tokamax's flash attention in Mosaic GPU, for Hopper (extra tokamax)",
)
