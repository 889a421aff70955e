"""tokamax's flash attention in Pallas-Triton: FlashAttention-2, one launch forward and one backward."""

from attn_tune.kernels.flash_attention import searches
from attn_tune.kernels.flash_attention.tokamax_triton import space
from attn_tune.kernels.flash_attention.tokamax_triton.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.flash_attention.tokamax_triton.limits import infeasible, unsupported
from attn_tune.kernels.lang.libraries.tokamax import EXTRA, LIBRARY
from attn_tune.kernels.spec import KernelSpec

_OP = "attn_tune.kernels.flash_attention"
_LANG = "attn_tune.kernels.lang"

SPEC = KernelSpec(
    op="flash_attention",
    name="tokamax_triton",
    backend="triton",
    searches={
        "fwd": searches.forward(
            __name__,
            ForwardConfig,
            heuristic=space.forward_heuristic,
            candidates=space.forward_candidates,
            infeasible=infeasible,
            # Larger tiles take more shared memory and more accumulators, more stages more shared memory.
            grows=("block_q", "block_k", "num_stages"),
        ),
        "bwd": searches.backward(
            __name__,
            BackwardConfig,
            heuristic=space.backward_heuristic,
            candidates=space.backward_candidates,
            infeasible=infeasible,
            grows=("block_m1", "block_n1", "block_m2", "block_n2", "num_stages"),
        ),
    },
    unsupported=unsupported,
    # Below all that has been proven on a GPU: it runs where a sweep has chosen it.
    requires=(LIBRARY,),
    extra=EXTRA,
    libraries=(LIBRARY,),
    summary="tokamax's flash attention in Pallas-Triton (extra tokamax)",
)
