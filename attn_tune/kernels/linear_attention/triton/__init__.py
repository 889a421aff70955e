"""Linear attention in Triton: chunks of tokens, whose states are carried in float32 registers."""

from attn_tune.kernels.lang.triton.linear import space
from attn_tune.kernels.lang.triton.linear.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.lang.triton.linear.limits import infeasible, unsupported
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

_ROOM = "attn_tune.kernels.lang.triton.linear"

SPEC = KernelSpec(
    op="linear_attention",
    name="triton",
    backend="triton",
    searches={
        "fwd": Search(
            config=ForwardConfig,
            heuristic=space.forward_heuristic,
            candidates={WHOLE: space.forward_candidates},
            infeasible=infeasible,
            adapt=space.adapt_forward,
            call=f"{_ROOM}.forward:forward",
            outputs={WHOLE: ("out", "state")},
            grows=("block_v", "num_stages"),
        ),
        "bwd": Search(
            config=BackwardConfig,
            heuristic=space.backward_heuristic,
            candidates={WHOLE: space.backward_candidates},
            infeasible=infeasible,
            call=f"{_ROOM}.backward:backward",
            outputs={WHOLE: ("dq", "dk", "dv", "dg", "dinitial_state")},
        ),
    },
    unsupported=unsupported,
    priority={"cuda": 10},
    requires=("triton",),
    extra="cuda",
    summary="chunks of tokens in Triton: one walk forwards, two at one time backwards, states in float32 registers",
)
