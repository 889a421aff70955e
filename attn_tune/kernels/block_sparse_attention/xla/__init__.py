"""Block-sparse attention in plain XLA: a scan over pairs of chunks that skips those without a listed block."""

import functools

from attn_tune.kernels.block_sparse_attention.xla import space
from attn_tune.kernels.lang.xla import chunks
from attn_tune.kernels.lang.xla.chunks import BackwardConfig, ForwardConfig
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

_GROWS = ("chunk_q", "chunk_k")

SPEC = KernelSpec(
    op="block_sparse_attention",
    name="xla",
    backend="xla",
    searches={
        "fwd": Search(
            config=ForwardConfig,
            heuristic=functools.partial(space.heuristic, ForwardConfig),
            candidates={WHOLE: functools.partial(chunks.candidates, ForwardConfig)},
            infeasible=chunks.infeasible,
            call=f"{__name__}.forward:forward",
            grows=_GROWS,
        ),
        "bwd": Search(
            config=BackwardConfig,
            heuristic=functools.partial(space.heuristic, BackwardConfig),
            candidates={WHOLE: functools.partial(chunks.candidates, BackwardConfig)},
            infeasible=chunks.infeasible,
            call=f"{__name__}.backward:backward",
            grows=_GROWS,
        ),
    },
    unsupported=chunks.unsupported,
    summary="chunks in plain XLA, those without a listed block skipped; every feature, every platform",
)
