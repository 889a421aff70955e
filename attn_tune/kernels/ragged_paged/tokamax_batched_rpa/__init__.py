"""Ragged attention over a cache in tokamax's batched ragged paged attention for TPU."""

from attn_tune.kernels.lang.libraries.tokamax import EXTRA, LIBRARY
from attn_tune.kernels.lang.pallas_tpu.batched import limits
from attn_tune.kernels.lang.pallas_tpu.batched.search import search
from attn_tune.kernels.spec import KernelSpec
from attn_tune.ops.ragged_paged.problem import Problem
from attn_tune.schema.device import Device


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that the kernel cannot do the problem on this device at all, or None."""
    if not problem.causal:
        return "it hides keys behind a query, and causal=0 asks for all keys; use platform='xla'"
    if problem.q_scale != "none":
        return f"its queries are {problem.dtype}; qscale={problem.q_scale} has queries that are codes"
    return limits.unsupported(problem, direction, device)


SPEC = KernelSpec(
    op="ragged_paged",
    name="tokamax_batched_rpa",
    backend="pallas_tpu",
    searches={"fwd": search(f"{__name__}.forward:forward", lambda problem: problem.tokens, cuts_queries=True)},
    unsupported=unsupported,
    # Below JAX's own: it runs where a sweep has chosen it.
    requires=(LIBRARY,),
    extra=EXTRA,
    libraries=(LIBRARY,),
    summary="tokamax's batched ragged paged attention for TPU v5 and later: an interleaved cache (extra tokamax)",
)
