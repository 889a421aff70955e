"""The gated delta rule for Hopper, in Triton's Gluon: walks hold states in registers, turned, and one warp copies."""

from attn_tune.kernels.gated_delta_rule.triton_hopper import space
from attn_tune.kernels.gated_delta_rule.triton_hopper.config import BackwardConfig, Config
from attn_tune.kernels.gated_delta_rule.triton_hopper.limits import infeasible, infeasible_backward
from attn_tune.kernels.lang.gluon.chunks.limits import unsupported
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

SPEC = KernelSpec(
    op="gated_delta_rule",
    name="triton_hopper",
    backend="triton",
    searches={
        "fwd": Search(
            config=Config,
            heuristic=space.heuristic,
            candidates={WHOLE: space.candidates},
            infeasible=infeasible,
            adapt=space.adapt,
            call=f"{__name__}.forward:forward",
            # More stages take more shared memory.
            grows=("num_stages",),
        ),
        "bwd": Search(
            config=BackwardConfig,
            heuristic=space.backward_heuristic,
            candidates={WHOLE: space.backward_candidates},
            infeasible=infeasible_backward,
            adapt=space.adapt_backward,
            call=f"{__name__}.backward:backward",
            grows=("num_stages", "gradient_stages"),
        ),
    },
    unsupported=unsupported,
    priority={"cuda": space.place},
    requires=("triton",),
    extra="cuda",
    summary="walks for Hopper in Gluon: states in registers from chunk to chunk, chunks by descriptor",
)
