"""A traced program as one flat graph of values, made from a jaxpr or from StableHLO, and what an op finds in it.

Calls are inlined. The body of a loop stands once; ``Value.runs`` says how often a value is computed. A value that a
loop carries is a ``parameter``; a value that it only reads is the value outside. Kinds are named as in StableHLO,
except where noted. ``Op.recognise`` takes a ``Graph`` and returns ``Findings``.
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
# Kinds that may be a call of an op, or part of one.
CALLS = frozenset({"dot", "marker", "custom_call"})


@dataclass(eq=False, slots=True)
class Value:
    """One value of the program.

    Attributes:
      kind: one of ``ELEMENTWISE`` or ``ARRANGING``; ``dot``, ``reduce_max``, ``reduce_sum``, ``iota``, ``constant``,
        ``concatenate``, ``slice``; ``marker`` and ``custom_call``; ``parameter``; else ``other``.
      shape: the sizes of its axes.
      dtype: the name that numpy gives it.
      inputs: the operands.
      attributes: ``dims`` (transpose, broadcast, reduce: axes; iota and concatenate: one axis), ``value``
        (constant), ``direction`` (compare: EQ, NE, GE, GT, LE, LT), ``contract`` and ``batch`` (dot: pairs of axes),
        ``name`` (marker, custom_call) and ``config`` (custom_call).
      runs: how often it is computed in one run of the program.
      parts: the number of shards along each axis, where the program says it.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: str
    inputs: tuple["Value", ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    runs: int = 1
    parts: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(slots=True)
class Graph:
    """The values of a program.

    Attributes:
      values: in an order of computation.
      remarks: sentences for people about what is uncertain: loops of unknown length, shapes that are not yet those of
        one device.
    """

    values: list[Value] = field(default_factory=list[Value])
    remarks: dict[str, None] = field(default_factory=dict[str, None])

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

    def remark_unknown_loop(self, first: int) -> None:
        """Says that a loop of unknown length counts once, if the values from ``first`` on may hold a call."""
        if any(value.kind in CALLS for value in self.values[first:]):
            self.remark("a loop of unknown length is counted once")

    def uses(self) -> dict[Value, list[Value]]:
        """The values that read each value."""
        found: dict[Value, list[Value]] = defaultdict(list)
        for value in self.values:
            for operand in dict.fromkeys(value.inputs):
                found[operand].append(value)
        return found


def fits(operand: tuple[int, ...], result: tuple[int, ...]) -> bool:
    """Whether an operand of an elementwise operation has the shape of its result or is broadcast to it."""
    if not operand:
        return True
    return len(operand) == len(result) and all(a in (1, b) for a, b in zip(operand, result, strict=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """One problem of an op in a program.

    Attributes:
      problem: of the op's problem type.
      direction: one of the op's directions.
      count: how often one run of the program computes it.
      found_as: a few words for people: by which pattern it was recognised.
      remark: a sentence about what was assumed, or nothing.
    """

    problem: Any
    direction: str
    count: int
    found_as: str
    remark: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unread:
    """A call that was recognised but has no signature.

    Attributes:
      what: a description or a name.
      reason: why it has no signature.
      count: how often one run of the program computes it.
    """

    what: str
    reason: str
    count: int


# What ``Op.recognise`` returns.
type Findings = Sequence[Found | Unread]
