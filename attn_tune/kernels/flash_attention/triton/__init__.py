"""Flash attention in Triton, for NVIDIA GPUs from Ampere on: FlashAttention-2 with every feature of the op."""

import functools

from attn_tune.kernels.flash_attention._triton.limits import infeasible, unsupported
from attn_tune.kernels.flash_attention.triton.adapt import adapt_backward, adapt_forward
from attn_tune.kernels.flash_attention.triton.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.flash_attention.triton.heuristic import (
    backward_heuristic,
    forward_heuristic,
)
from attn_tune.kernels.flash_attention.triton.space import (
    dkv_candidates,
    dq_candidates,
    forward_candidates,
)
from attn_tune.kernels.flash_attention.untuned import priority
from attn_tune.kernels.knobs import first_reason
from attn_tune.kernels.lang.triton import BRIDGE
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.trial import WHOLE

# Larger tiles take more shared memory and more accumulators, more stages more shared memory.
_GROWS = ("block_q", "block_k", "num_stages")

_DEVICE = "attn_tune.kernels.lang.triton.device"

SPEC = KernelSpec(
    op="flash_attention",
    name="triton",
    backend="triton",
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
            outputs={"dq": ("dq",), "dkv": ("dk", "dv")},
            infeasible=functools.partial(first_reason, infeasible),
            grows=_GROWS,
        ),
    },
    unsupported=unsupported,
    modules=(
        *(
            f"{__name__}.{name}"
            for name in ("backward", "backward_dkv", "backward_dq", "config", "forward")
        ),
        *(
            f"attn_tune.kernels.flash_attention._triton.{name}"
            for name in ("arrays", "backward_dbias")
        ),
        *(
            f"{_DEVICE}.{name}"
            for name in ("backward", "logits", "ranges", "softmax", "static", "tile")
        ),
        *BRIDGE,
    ),
    priority={"cuda": functools.partial(priority, "triton")},
    requires=("triton",),
    summary="FlashAttention-2 in Triton: fp16, bf16, fp32; every feature; sm_80 and later",
)
