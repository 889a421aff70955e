"""JAX's splash attention for TPU: block-sparse flash attention in Pallas, of which masks and blocks are ours."""

from attn_tune.kernels.flash_attention import searches
from attn_tune.kernels.flash_attention._splash.limits import infeasible, unsupported
from attn_tune.kernels.flash_attention._splash.space import adapt
from attn_tune.kernels.flash_attention.pallas_tpu_splash import space
from attn_tune.kernels.flash_attention.pallas_tpu_splash.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.spec import KernelSpec

_OP = "attn_tune.kernels.flash_attention"
_LANG = "attn_tune.kernels.lang"

# Larger blocks take more VMEM.
_GROWS = ("block_q", "block_kv")

SPEC = KernelSpec(
    op="flash_attention",
    name="pallas_tpu_splash",
    backend="pallas_tpu",
    searches={
        "fwd": searches.forward(
            __name__,
            ForwardConfig,
            heuristic=space.forward_heuristic,
            candidates=space.forward_candidates,
            adapt=adapt,
            infeasible=infeasible,
            grows=_GROWS,
        ),
        "bwd": searches.backward_in_parts(
            __name__,
            BackwardConfig,
            heuristic=space.backward_heuristic,
            dq=space.dq_candidates,
            dkv=space.dkv_candidates,
            adapt=space.adapt_backward,
            infeasible=infeasible,
            grows=_GROWS,
        ),
    },
    unsupported=unsupported,
    summary="JAX's splash attention: block-sparse, for TPU v4 and later",
)
