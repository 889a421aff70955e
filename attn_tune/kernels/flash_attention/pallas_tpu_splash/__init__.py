"""JAX's splash attention for TPU: block-sparse flash attention in Pallas, of which masks and blocks are ours."""

import functools

from attn_tune.kernels.flash_attention._splash.limits import infeasible, unsupported
from attn_tune.kernels.flash_attention._splash.space import adapt
from attn_tune.kernels.flash_attention.pallas_tpu_splash.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.flash_attention.pallas_tpu_splash.space import (
    adapt_backward,
    backward_heuristic,
    dkv_candidates,
    dq_candidates,
    forward_candidates,
    forward_heuristic,
)
from attn_tune.kernels.knobs import first_reason
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.trial import WHOLE

_OP = "attn_tune.kernels.flash_attention"
_LANG = "attn_tune.kernels.lang"

# Larger blocks take more VMEM.
_GROWS = ("block_q", "block_kv")

SPEC = KernelSpec(
    op="flash_attention",
    name="pallas_tpu_splash",
    backend="pallas_tpu",
    searches={
        "fwd": Search(
            config=ForwardConfig,
            heuristic=forward_heuristic,
            candidates={WHOLE: forward_candidates},
            adapt=adapt,
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
            outputs={"dq": ("dq",), "dkv": ("dk", "dv")},
            infeasible=functools.partial(first_reason, infeasible),
            grows=_GROWS,
        ),
    },
    unsupported=unsupported,
    modules=(
        *(f"{__name__}.{name}" for name in ("backward", "config", "forward")),
        *(
            f"{_OP}._splash.{name}"
            for name in ("backward", "config", "extent", "arrays", "schedule")
        ),
        *(f"{_LANG}.pallas_tpu.{name}" for name in ("memory", "padding", "precision", "rewrite")),
        "attn_tune.kernels.padding",
    ),
    priority={"tpu": 50},
    summary="JAX's splash attention: block-sparse, for TPU v4 and later",
)
