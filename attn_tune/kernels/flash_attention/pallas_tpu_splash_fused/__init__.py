"""The fused backward of JAX's splash attention for TPU: dq, dk and dv from one launch."""

import functools

from attn_tune.kernels.flash_attention import searches
from attn_tune.kernels.flash_attention._splash import space
from attn_tune.kernels.flash_attention._splash.limits import infeasible, unsupported_fused
from attn_tune.kernels.flash_attention.pallas_tpu_splash_fused.config import BackwardConfig
from attn_tune.kernels.spec import KernelSpec

_OP = "attn_tune.kernels.flash_attention"
_LANG = "attn_tune.kernels.lang"

SPEC = KernelSpec(
    op="flash_attention",
    name="pallas_tpu_splash_fused",
    backend="pallas_tpu",
    searches={
        "bwd": searches.backward(
            __name__,
            BackwardConfig,
            heuristic=functools.partial(space.heuristic, BackwardConfig),
            candidates=functools.partial(space.candidates, BackwardConfig),
            infeasible=infeasible,
            adapt=space.adapt,
            # Larger blocks take more VMEM.
            grows=("block_q", "block_kv"),
        ),
    },
    unsupported=unsupported_fused,
    summary="the fused backward of JAX's splash attention: one launch for all gradients",
)
