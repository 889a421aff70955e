"""Ragged attention over a cache of codes in Triton: queries are codes too, and multiplied with those of keys."""

from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.ragged_paged._triton.tiles import refuses, search
from attn_tune.kernels.spec import KernelSpec
from attn_tune.ops.ragged_paged.problem import Problem
from attn_tune.schema.device import Device

# Columns that one product of 8-bit numbers sums at least.
_FEWEST_COLUMNS = 32


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that this kernel cannot do the problem on this device at all, or None."""
    p = problem
    if p.q_scale == "none":
        return f"it multiplies codes with codes; queries are {p.dtype} (qscale=none)"
    if p.dtype == "float32":
        return "its weights are 16-bit numbers; dtype is float32"
    if padded(p.head_dim) < _FEWEST_COLUMNS:
        return f"a product of 8-bit numbers sums {_FEWEST_COLUMNS} columns at least; h={p.head_dim}"
    return refuses(p, device)


SPEC = KernelSpec(
    op="ragged_paged",
    name="triton_8bit",
    backend="triton",
    searches={"fwd": search(f"{__name__}.forward:forward")},
    unsupported=unsupported,
    priority={"cuda": 10},
    requires=("triton",),
    extra="cuda",
    summary="ragged attention in Triton whose products of queries and keys, both codes, are those of 8-bit numbers",
)
