"""JAX's splash attention for TPU, its tables of visited blocks made from a traced mask."""

import functools

from attn_tune.kernels.block_sparse_attention.pallas_tpu_splash import space
from attn_tune.kernels.block_sparse_attention.pallas_tpu_splash.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.block_sparse_attention.pallas_tpu_splash.limits import infeasible, unsupported
from attn_tune.kernels.knobs import first_reason
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

# Larger blocks take more VMEM.
_GROWS = ("block_q", "block_kv")

SPEC = KernelSpec(
    op="block_sparse_attention",
    name="pallas_tpu_splash",
    backend="pallas_tpu",
    searches={
        "fwd": Search(
            config=ForwardConfig,
            heuristic=space.forward_heuristic,
            candidates={WHOLE: space.forward_candidates},
            infeasible=infeasible,
            call=f"{__name__}.forward:forward",
            grows=_GROWS,
        ),
        "bwd": Search(
            config=BackwardConfig,
            heuristic=space.backward_heuristic,
            candidates={"dq": space.dq_candidates, "dkv": space.dkv_candidates},
            infeasible=functools.partial(first_reason, infeasible),
            call=f"{__name__}.backward:backward",
            outputs={"dq": ("dq",), "dkv": ("dk", "dv")},
            grows=_GROWS,
        ),
    },
    unsupported=unsupported,
    priority={"tpu": 10},
    summary="JAX's splash attention with tables of blocks made on the device: blocks of 128 and more, TPU v4 and later",
)
