"""KDA in Triton: chunks of tokens, whose triangular systems are solved on tensor cores; a gate for each channel."""

from attn_tune.kernels.kda.triton import space
from attn_tune.kernels.kda.triton.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.kda.triton.limits import infeasible
from attn_tune.kernels.lang.triton.chunks.limits import unsupported
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

SPEC = KernelSpec(
    op="kda",
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
            grows=("block_v", "num_stages"),
        ),
        "bwd": Search(
            config=BackwardConfig,
            heuristic=space.backward_heuristic,
            candidates={WHOLE: space.backward_candidates},
            infeasible=infeasible,
            call=f"{__name__}.backward:backward",
        ),
    },
    unsupported=unsupported,
    priority={"cuda": 10},
    requires=("triton",),
    extra="cuda",
    summary="chunks of tokens in Triton: a gate a channel, systems solved on tensor cores, states in float32 registers",
)
