"""The declaration of kernels that take states token by token."""

from attn_tune.kernels.lang.triton.steps import space
from attn_tune.kernels.lang.triton.steps.config import Config
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

# Sequences of so many tokens at most are decoded: what one chunk does takes longer.
_FEW = 16


def steps_spec(op: str) -> KernelSpec:
    """The kernel ``triton_steps`` of an op whose states go from token to token."""
    return KernelSpec(
        op=op,
        name="triton_steps",
        backend="triton",
        searches={
            "fwd": Search(
                config=Config,
                heuristic=space.heuristic,
                candidates={WHOLE: space.candidates},
                call="attn_tune.kernels.lang.triton.steps.forward:forward",
            ),
        },
        unsupported=space.unsupported,
        priority={"cuda": lambda problem, direction, device: 20 if max(problem.lengths) <= _FEW else 5},
        requires=("triton",),
        extra="cuda",
        summary="decoding in Triton: a state is read once, taken through a few tokens in registers, and written once",
    )
