"""Attention to selected blocks in Triton, for NVIDIA GPUs from Ampere on."""

import functools

from attn_tune.kernels.knobs import first_reason
from attn_tune.kernels.native_sparse_attention.triton import space
from attn_tune.kernels.native_sparse_attention.triton.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.native_sparse_attention.triton.limits import infeasible, unsupported
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

SPEC = KernelSpec(
    op="native_sparse_attention",
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
            # Larger tiles take more shared memory and more registers, more stages more shared memory.
            grows=("block_k", "num_stages"),
        ),
        "bwd": Search(
            config=BackwardConfig,
            heuristic=space.backward_heuristic,
            candidates={"dq": space.dq_candidates, "dkv": space.dkv_candidates},
            infeasible=functools.partial(first_reason, infeasible),
            adapt=space.adapt_backward,
            call=f"{__name__}.backward:backward",
            outputs={"dq": ("dq",), "dkv": ("dk", "dv")},
            grows=("block_k", "num_stages"),
        ),
    },
    unsupported=unsupported,
    priority={"cuda": 10},
    requires=("triton",),
    extra="cuda",
    summary="a group's queries gather blocks, blocks gather queries by lists made on the device; sm_80 and later",
)
