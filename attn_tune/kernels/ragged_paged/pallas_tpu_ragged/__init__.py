"""Ragged attention over a cache in JAX's ragged paged attention for TPU."""

from attn_tune.kernels.lang.pallas_tpu.ragged import limits
from attn_tune.kernels.lang.pallas_tpu.ragged.search import search
from attn_tune.kernels.spec import KernelSpec
from attn_tune.ops.ragged_paged.problem import Problem
from attn_tune.schema.device import Device


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that the kernel cannot do the problem on this device at all, or None."""
    if not problem.causal:
        return "it hides keys behind a query, and causal=0 asks for all keys"
    if problem.q_scale != "none":
        return f"its queries are {problem.dtype}; qscale={problem.q_scale} has queries that are codes"
    return limits.unsupported(problem, direction, device)


SPEC = KernelSpec(
    op="ragged_paged",
    name="pallas_tpu_ragged",
    backend="pallas_tpu",
    searches={"fwd": search(f"{__name__}.forward:forward", lambda problem: problem.tokens)},
    unsupported=unsupported,
    priority={"tpu": 10},
    summary="JAX's ragged paged attention for TPU: an interleaved cache, 16-bit, float32, float8 or int8",
)
