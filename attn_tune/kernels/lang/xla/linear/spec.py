"""The declaration of kernels in tiles of tokens."""

from attn_tune.kernels.lang.xla.linear import space
from attn_tune.kernels.lang.xla.linear.config import (
    BackwardConfig,
    DeltaBackwardConfig,
    DeltaForwardConfig,
    ForwardConfig,
)
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

_ROOM = "attn_tune.kernels.lang.xla.linear"


def tiled_spec(op: str, *, has_delta: bool) -> KernelSpec:
    """The kernel ``xla`` of an op whose states go from token to token."""
    return KernelSpec(
        op=op,
        name="xla",
        backend="xla",
        searches={
            "fwd": Search(
                config=DeltaForwardConfig if has_delta else ForwardConfig,
                heuristic=space.forward_heuristic,
                candidates={WHOLE: space.forward_candidates},
                infeasible=space.infeasible,
                adapt=space.adapt,
                call=f"{_ROOM}.forward:forward",
                grows=("chunk", "tiles"),
            ),
            "bwd": Search(
                config=DeltaBackwardConfig if has_delta else BackwardConfig,
                heuristic=space.backward_heuristic,
                candidates={WHOLE: space.backward_candidates},
                infeasible=space.infeasible,
                adapt=space.adapt,
                call=f"{_ROOM}.backward:backward",
            ),
        },
        unsupported=space.unsupported,
        summary="tiles of tokens in plain XLA; every feature, every platform",
    )
