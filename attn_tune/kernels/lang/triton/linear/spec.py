"""The declaration of kernels of linear attention in chunks."""

from attn_tune.kernels.lang.triton.chunks.limits import unsupported
from attn_tune.kernels.lang.triton.linear import space
from attn_tune.kernels.lang.triton.linear.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.lang.triton.linear.limits import infeasible
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

_ROOM = "attn_tune.kernels.lang.triton.linear"


def linear_spec(
    op: str,
    *,
    forward: type[ForwardConfig],
    backward: type[BackwardConfig],
    summary: str,
) -> KernelSpec:
    """The kernel ``triton`` of an op without the delta rule, whose gates decide the configs of both directions."""
    return KernelSpec(
        op=op,
        name="triton",
        backend="triton",
        searches={
            "fwd": Search(
                config=forward,
                heuristic=space.forward_heuristic,
                candidates={WHOLE: space.forward_candidates},
                infeasible=infeasible,
                adapt=space.adapt_forward,
                call=f"{_ROOM}.forward:forward",
                grows=("block_v", "num_stages"),
            ),
            "bwd": Search(
                config=backward,
                heuristic=space.backward_heuristic,
                candidates={WHOLE: space.backward_candidates},
                infeasible=infeasible,
                call=f"{_ROOM}.backward:backward",
            ),
        },
        unsupported=unsupported,
        priority={"cuda": 10},
        requires=("triton",),
        extra="cuda",
        summary=summary,
    )
