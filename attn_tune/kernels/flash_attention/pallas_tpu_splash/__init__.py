"""JAX's splash attention for TPU: block-sparse flash attention in Pallas, of which masks and blocks are ours."""

from attn_tune.kernels.flash_attention.pallas_tpu_splash.config import ForwardConfig
from attn_tune.kernels.flash_attention.pallas_tpu_splash.heuristic import forward_heuristic
from attn_tune.kernels.flash_attention.pallas_tpu_splash.limits import infeasible, unsupported
from attn_tune.kernels.flash_attention.pallas_tpu_splash.space import forward_candidates
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.trial import WHOLE

_SHARED = "attn_tune.kernels.flash_attention._pallas_tpu"

SPEC = KernelSpec(
    op="flash_attention",
    name="pallas_tpu_splash",
    backend="pallas_tpu",
    searches={
        "fwd": Search(
            config=ForwardConfig,
            heuristic=forward_heuristic,
            candidates={WHOLE: forward_candidates},
            call=f"{__name__}.forward:forward",
            outputs={WHOLE: ("out", "lse")},
            infeasible=infeasible,
        ),
    },
    unsupported=unsupported,
    modules=(
        *(f"{__name__}.{name}" for name in ("config", "forward", "operands", "schedule")),
        *(f"{_SHARED}.{name}" for name in ("limit", "padding")),
    ),
    priority={"tpu": 50},
    summary="JAX's splash attention: block-sparse, for TPU v4 and later",
)
