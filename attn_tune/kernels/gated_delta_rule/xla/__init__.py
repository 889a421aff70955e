"""The gated delta rule in plain XLA: tiles of tokens, or token by token. Runs everywhere."""

from attn_tune.kernels.gated_delta_rule.xla import space
from attn_tune.kernels.gated_delta_rule.xla.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.ops.gated_delta_rule.problem import NAME
from attn_tune.schema.direction import WHOLE

SPEC = KernelSpec(
    op=NAME,
    name="xla",
    backend="xla",
    searches={
        "fwd": Search(
            config=ForwardConfig,
            heuristic=space.forward_heuristic,
            candidates={WHOLE: space.forward_candidates},
            infeasible=space.infeasible,
            adapt=space.adapt,
            call=f"{__name__}.forward:forward",
            outputs={WHOLE: ("out", "state")},
            grows=("chunk", "tiles"),
        ),
        "bwd": Search(
            config=BackwardConfig,
            heuristic=space.backward_heuristic,
            candidates={WHOLE: space.backward_candidates},
            infeasible=space.infeasible,
            adapt=space.adapt,
            call=f"{__name__}.backward:backward",
            outputs={WHOLE: ("dq", "dk", "dv", "dg", "dbeta", "dinitial_state")},
        ),
    },
    unsupported=space.unsupported,
    summary="tiles of tokens in plain XLA; every feature, every platform",
)
