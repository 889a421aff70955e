"""Flash attention in plain XLA: a scan over visible chunk pairs. Runs everywhere."""

import functools

from attn_tune.kernels.flash_attention import searches
from attn_tune.kernels.lang.xla import chunks
from attn_tune.kernels.lang.xla.chunks import BackwardConfig, ForwardConfig
from attn_tune.kernels.spec import KernelSpec
from attn_tune.ops.flash_attention.problem import NAME

SPEC = KernelSpec(
    op=NAME,
    name="xla",
    backend="xla",
    searches={
        "fwd": searches.forward(
            __name__,
            ForwardConfig,
            heuristic=functools.partial(chunks.heuristic, ForwardConfig),
            candidates=functools.partial(chunks.candidates, ForwardConfig),
            infeasible=chunks.infeasible,
            grows=("chunk_q", "chunk_k"),
        ),
        "bwd": searches.backward(
            __name__,
            BackwardConfig,
            heuristic=functools.partial(chunks.heuristic, BackwardConfig),
            candidates=functools.partial(chunks.candidates, BackwardConfig),
            infeasible=chunks.infeasible,
            grows=("chunk_q", "chunk_k"),
        ),
    },
    unsupported=chunks.unsupported,
    summary="chunked online softmax in plain XLA; every feature, every platform",
)
