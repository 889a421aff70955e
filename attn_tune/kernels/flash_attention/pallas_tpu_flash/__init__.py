"""JAX's flash attention for TPU: the dense kernel in Pallas, with a bias and its gradient."""

import functools

from attn_tune.kernels.flash_attention.pallas_tpu_flash.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.flash_attention.pallas_tpu_flash.limits import infeasible, unsupported
from attn_tune.kernels.flash_attention.pallas_tpu_flash.space import (
    adapt_backward,
    adapt_forward,
    backward_heuristic,
    dkv_candidates,
    dq_candidates,
    forward_candidates,
    forward_heuristic,
)
from attn_tune.kernels.knobs import first_reason
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.trial import WHOLE

_SHARED = "attn_tune.kernels.lang.pallas_tpu"

# Larger blocks take more VMEM.
_GROWS = ("block_q", "block_k_major", "block_k")

SPEC = KernelSpec(
    op="flash_attention",
    name="pallas_tpu_flash",
    backend="pallas_tpu",
    searches={
        "fwd": Search(
            config=ForwardConfig,
            heuristic=forward_heuristic,
            candidates={WHOLE: forward_candidates},
            adapt=adapt_forward,
            call=f"{__name__}.forward:forward",
            outputs={WHOLE: ("out", "lse")},
            infeasible=infeasible,
            grows=_GROWS,
        ),
        "bwd": Search(
            config=BackwardConfig,
            heuristic=backward_heuristic,
            candidates={"dq": dq_candidates, "dkv": dkv_candidates},
            adapt=adapt_backward,
            call=f"{__name__}.backward:backward",
            outputs={"dq": ("dq", "dbias"), "dkv": ("dk", "dv")},
            infeasible=functools.partial(first_reason, infeasible),
            grows=_GROWS,
        ),
    },
    unsupported=unsupported,
    modules=(
        *(f"{__name__}.{name}" for name in ("backward", "config", "forward", "frame", "arrays")),
        *(f"{_SHARED}.{name}" for name in ("memory", "precision", "rewrite")),
        "attn_tune.kernels.padding",
    ),
    priority={"tpu": 30},
    summary="JAX's flash attention for TPU: dense, with bias and its gradient",
)
