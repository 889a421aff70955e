"""A program as one flat graph of values: what is read from a jaxpr, from StableHLO and from HLO alike.

Calls are laid open; the body of a loop stands once, and its values say how often they run. What a loop carries is a
``parameter``, what it only reads is the value outside. Names of kinds are StableHLO's, shortened where noted.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# One result, of the shape of its operands; these may be scalars, or of size 1 along some axes. ``convert`` keeps the
# value, not the dtype.
ELEMENTWISE = frozenset((
    "abs", "add", "and", "ceil", "clamp", "compare", "convert", "copy", "cosine", "divide",
    "erf", "exp", "exp2", "expm1", "floor", "is_finite", "log", "log1p", "logistic", "max",
    "min", "multiply", "negate", "not", "or", "pow", "power", "remainder", "round", "rsqrt",
    "select", "sign", "sine", "sqrt", "subtract", "tanh", "xor",
))  # fmt: skip
# One result with the elements of its first operand, in another arrangement.
ARRANGING = frozenset({"transpose", "reshape", "broadcast"})


@dataclass(eq=False, slots=True)
class Value:
    """One value of the program.

    Attributes:
      kind: of ``ELEMENTWISE`` or ``ARRANGING``; ``dot``, ``reduce_max``, ``reduce_sum``, ``iota``, ``constant``,
        ``concatenate``, ``slice``; ``marker`` and ``custom_call``; ``parameter``; else ``other``.
      attributes: ``dims`` (transpose, broadcast, reduce: axes; iota and concatenate: one axis), ``value``
        (constant), ``direction`` (compare: EQ, NE, GE, GT, LE, LT), ``contract`` and ``batch`` (dot: pairs of axes),
        ``name`` (marker, custom_call) and ``config`` (custom_call).
      runs: how often it is computed in one run of the program.
      parts: into how many shards each axis is cut, where the program says so.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: str
    inputs: tuple["Value", ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    runs: int = 1
    parts: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(slots=True)
class Graph:
    """The values of a program in an order of computation, and what could not be told about it.

    ``remarks`` are sentences for people: loops of unknown length, shapes that are not yet those of one device.
    """

    values: list[Value] = field(default_factory=list)
    remarks: dict[str, None] = field(default_factory=dict)

    def add(
        self,
        kind: str,
        shape: Sequence[int],
        dtype: str,
        inputs: Sequence[Value] = (),
        *,
        runs: int = 1,
        parts: tuple[int, ...] | None = None,
        **attributes: Any,
    ) -> Value:
        """Makes a value and keeps it."""
        value = Value(kind, tuple(shape), dtype, tuple(inputs), attributes, runs, parts)
        self.values.append(value)
        return value

    def remark(self, text: str) -> None:
        """Keeps a sentence, once."""
        self.remarks[text] = None

    def uses(self) -> dict[Value, list[Value]]:
        """The values that read each value."""
        found: dict[Value, list[Value]] = defaultdict(list)
        for value in self.values:
            for operand in dict.fromkeys(value.inputs):
                found[operand].append(value)
        return found


def fits(operand: tuple[int, ...], result: tuple[int, ...]) -> bool:
    """Whether an operand of an elementwise operation has the shape of its result, as far as it is not repeated."""
    if not operand:
        return True
    return len(operand) == len(result) and all(
        a in (1, b) for a, b in zip(operand, result, strict=True)
    )
