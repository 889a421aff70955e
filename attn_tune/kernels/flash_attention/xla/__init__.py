"""Flash attention in plain XLA: a scan over visible chunk pairs. Runs everywhere."""

from attn_tune.kernels.flash_attention import searches
from attn_tune.kernels.flash_attention.xla import space
from attn_tune.kernels.flash_attention.xla.config import BackwardConfig, ForwardConfig
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
            heuristic=space.forward_heuristic,
            candidates=space.forward_candidates,
            infeasible=space.infeasible,
            grows=("chunk_q", "chunk_k"),
        ),
        "bwd": searches.backward(
            __name__,
            BackwardConfig,
            heuristic=space.backward_heuristic,
            candidates=space.backward_candidates,
            infeasible=space.infeasible,
            grows=("chunk_q", "chunk_k"),
        ),
    },
    unsupported=space.unsupported,
    summary="chunked online softmax in plain XLA; every feature, every platform",
)
