"""Ragged attention over a cache in Triton: tiles of queries found on the device, and decoding in its own launch."""

from attn_tune.kernels.ragged_paged._triton.tiles import refuses, search
from attn_tune.kernels.spec import KernelSpec
from attn_tune.ops.ragged_paged.problem import Problem
from attn_tune.schema.device import Device


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that this kernel cannot do the problem on this device at all, or None."""
    if problem.q_scale != "none":
        return f"it multiplies in 16 bits or more; qscale={problem.q_scale} has queries that are codes (triton_8bit)"
    return refuses(problem, device)


SPEC = KernelSpec(
    op="ragged_paged",
    name="triton",
    backend="triton",
    searches={"fwd": search(f"{__name__}.forward:forward")},
    unsupported=unsupported,
    priority={"cuda": 10},
    requires=("triton",),
    extra="cuda",
    summary="ragged attention in Triton: tiles of queries found on the device, decoding in a launch of its own",
)
