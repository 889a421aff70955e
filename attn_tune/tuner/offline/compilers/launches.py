"""Take the Pallas launches out of a traced program, each as a program of its own.

Around a launch XLA transposes, pads and casts, which is the same for most configs and takes longer to compile than many
a launch. What a launch costs and whether it fits is decided inside of it.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from attn_tune.kernels.lang.jaxprs import equations, inner_jaxprs
from attn_tune.schema.digest import digest_text

# Run what is in them once. Of any other, a loop say, the trips would have to be known.
_TRANSPARENT = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call")
_PALLAS = "pallas_call"
# Numbers that grow with the grid: bounds in the body, and the tables in scalar memory.
_INTEGER = re.compile(r"(?<![\w.])-?(\d+):i32\[\]")
_TABLE = re.compile(r"Ref<smem>\{(\w+)\[[\d,]*\]")
_LOOP = re.compile(r"\bwhile\[")
_MOST_KEPT = 1


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One ``pallas_call``.

    Attributes:
      name: its own, or that of its kernel's function.
      grid: its steps along each axis; None along one whose length is computed.
      equation: of the jaxpr.
    """

    name: str
    grid: tuple[int | None, ...]
    equation: Any = field(repr=False)

    @property
    def steps(self) -> int | None:
        """The steps of the whole grid; None where it is computed."""
        sizes = [size for size in self.grid if size is not None]
        return math.prod(sizes) if len(sizes) == len(self.grid) else None

    @property
    def is_parallel(self) -> bool:
        """Whether cores may share an axis of the grid."""
        semantics = getattr(self.equation.params["compiler_params"], "dimension_semantics", None)
        axes = zip(semantics or (), self.grid, strict=False)
        return any(str(kind).lower().endswith("parallel") and size != 1 for kind, size in axes)

    @property
    def avals(self) -> list[Any]:
        """Shapes and types of its operands."""
        return [operand.aval for operand in self.equation.invars]

    @property
    def results(self) -> list[Any]:
        """Shapes and types of its results."""
        return [result.aval for result in self.equation.outvars]

    def __call__(self, *operands: Any) -> Any:
        """Bind the launch alone, under a trace."""
        return self.equation.primitive.bind(*operands, **self.equation.params)

    @property
    def key(self) -> str:
        """A digest that is the same for launches whose steps are the same: body, blocks, types, compiler parameters.

        The number of steps is left out, but not whether an axis has one or more: the compiler keeps what never changes.
        So are integers of the body larger than one, where that has no loop of unknown length: the last step's
        index, the edge of a mask.
        """
        return self._digest(_MOST_KEPT)

    @property
    def likeness(self) -> str:
        """A digest like ``key``, without integers of the body: the same for launches that differ in lengths alone."""
        return self._digest(-1)

    def _digest(self, most_kept: int) -> str:
        params = self.equation.params
        mapping = params["grid_mapping"]
        body = str(params["jaxpr"])
        blocks = [
            f"{block.block_shape} {block.array_aval.dtype} {block.array_aval.ndim} {block.pipeline_mode} "
            f"{_shareable(str(block.index_map_jaxpr), most_kept)}"
            for block in mapping.block_mappings
        ]
        parts = (
            self.name,
            " ".join("one" if size == 1 else "many" for size in self.grid),
            str(params["compiler_params"]),
            str(params.get("input_output_aliases")),
            *blocks,
            _shareable(body, most_kept),
        )
        return digest_text("\n".join(parts))


def launches_of(jaxpr: Any) -> list[Launch] | None:
    """The launches that the outputs of a traced program need, in order.

    None where they cannot stand alone: there is none, or one is in a loop or a branch.
    """
    try:
        found = [_launch(e) for e in _needed(jaxpr, [True] * len(jaxpr.outvars))]
    except _Inseparable:
        return None
    return found or None


class _Inseparable(Exception):
    """Raised when a launch depends on the program around it."""


def _launch(equation: Any) -> Launch:
    sizes = equation.params["grid_mapping"].grid
    grid = tuple(size if isinstance(size, int) else None for size in sizes)
    # Some of JAX's own have no name, and what a launch is called says how it walks.
    function = getattr(equation.params["jaxpr"].debug_info, "func_name", "")
    return Launch(name=str(equation.params.get("name") or function), grid=grid, equation=equation)


def _needed(jaxpr: Any, wanted: Sequence[bool]) -> list[Any]:
    """The ``pallas_call`` equations that the ``wanted`` outputs depend on."""
    live = {id(v) for v, is_wanted in zip(jaxpr.outvars, wanted, strict=True) if is_wanted}
    found: list[Any] = []
    for equation in reversed(jaxpr.eqns):
        used = [id(v) in live for v in equation.outvars]
        if not any(used):
            continue
        live.update(id(v) for v in equation.invars)
        if equation.primitive.name == _PALLAS:
            found.append(equation)
            continue
        for inner in inner_jaxprs(equation.params):
            if equation.primitive.name in _TRANSPARENT and len(inner.outvars) == len(used):
                found += reversed(_needed(inner, used))
            elif next(equations(inner, _PALLAS), None) is not None:
                raise _Inseparable
    return found[::-1]


def _shareable(text: str, most_kept: int) -> str:
    if _LOOP.search(text):
        return text
    text = _TABLE.sub(r"Ref<smem>{\1[]", text)
    return _INTEGER.sub(lambda m: m[0] if int(m[1]) <= most_kept else "#", text)
