"""FlashAttention-4 on Hopper, called from JAX: CuTe DSL kernels, whose tables by head dim become knobs here."""

from attn_tune.kernels.flash_attention import searches
from attn_tune.kernels.flash_attention._fa4 import limits, space
from attn_tune.kernels.flash_attention._fa4.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.spec import KernelSpec

SPEC = KernelSpec(
    op="flash_attention",
    name="fa4",
    backend="cute",
    searches={
        "fwd": searches.forward(
            __name__,
            ForwardConfig,
            heuristic=space.forward_heuristic,
            candidates=space.forward_candidates,
            infeasible=limits.forward_infeasible,
            grows=("block_k", "num_stages"),
        ),
        "bwd": searches.backward(
            __name__,
            BackwardConfig,
            heuristic=space.backward_heuristic,
            candidates=space.backward_candidates,
            outputs=("dq", "dk", "dv"),
            infeasible=limits.backward_infeasible,
            grows=("block_q", "block_k", "stages"),
            nondeterministic="dq is summed by atomics, in an order that differs from run to run",
        ),
    },
    unsupported=limits.unsupported,
    # Behind all but where it won races (``untuned.py``), and where a sweep has chosen it.
    requires=limits.MODULES,
    extra=limits.EXTRA,
    libraries=limits.LIBRARIES,
    summary="FlashAttention-4 in the CuTe DSL, for Hopper (extra fa4)",
)
