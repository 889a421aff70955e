"""Block-sparse attention in Triton, for NVIDIA GPUs from Ampere on: programs walk lists of tiles made on the device."""

import functools

from attn_tune.kernels.block_sparse_attention.triton import space
from attn_tune.kernels.block_sparse_attention.triton.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.block_sparse_attention.triton.limits import infeasible, unsupported
from attn_tune.kernels.knobs import first_reason
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

# Larger tiles take more shared memory and more accumulators, more stages more shared memory.
_GROWS = ("block_q", "block_k", "num_stages")

SPEC = KernelSpec(
    op="block_sparse_attention",
    name="triton",
    backend="triton",
    searches={
        "fwd": Search(
            config=ForwardConfig,
            heuristic=space.forward_heuristic,
            candidates={WHOLE: space.forward_candidates},
            infeasible=infeasible,
            adapt=space.adapt_forward,
            call=f"{__name__}.forward:forward",
            grows=_GROWS,
        ),
        "bwd": Search(
            config=BackwardConfig,
            heuristic=space.backward_heuristic,
            candidates={"dq": space.dq_candidates, "dkv": space.dkv_candidates},
            infeasible=functools.partial(first_reason, infeasible),
            adapt=space.adapt_backward,
            call=f"{__name__}.backward:backward",
            outputs={"dq": ("dq",), "dkv": ("dk", "dv")},
            grows=_GROWS,
        ),
    },
    unsupported=unsupported,
    priority={"cuda": 10},
    requires=("triton",),
    extra="cuda",
    summary="lists of tiles made from the mask on the device, walked in Triton: fp16, bf16, fp32; sm_80 and later",
)
