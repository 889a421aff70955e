"""Classifies boolean values over pairs of query and key: causal, a window, segments, or a dense mask.

Nothing is computed in full: a value that is made of iotas and constants is evaluated at some rows of any length.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_tune.ops.program_graph import ELEMENTWISE, Value

# Rows of a mask that are looked at, the first and the last among them.
ROWS = 65
# Operations that a mask is made of, at most.
MAX_STEPS = 256
_AND = frozenset({"and", "multiply", "min"})
_BINARY = {
    "add": np.add,
    "and": np.logical_and,
    "divide": np.floor_divide,
    "max": np.maximum,
    "min": np.minimum,
    "multiply": np.multiply,
    "or": np.logical_or,
    "remainder": np.remainder,
    "subtract": np.subtract,
    "xor": np.logical_xor,
}
_OTHERS = frozenset(
    (
        "abs",
        "broadcast",
        "compare",
        "convert",
        "copy",
        "negate",
        "not",
        "reshape",
        "select",
        "transpose",
    )
)
_COMPARE = {
    "EQ": np.equal,
    "GE": np.greater_equal,
    "GT": np.greater,
    "LE": np.less_equal,
    "LT": np.less,
    "NE": np.not_equal,
}


class _Unknown(Exception):
    """The value depends on more than iotas and constants."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """A mask in the words of a signature.

    Attributes:
      causal: whether its right edge is the diagonal, aligned at the bottom right.
      left: the window's size to the left of the diagonal.
      right: the window's size to the right of it.
      dims: letters of the axes of a dense mask, which no edge describes.
      has_segments: whether ids of queries and keys are compared.
    """

    causal: bool = False
    left: int | None = None
    right: int | None = None
    dims: frozenset[str] = frozenset()
    has_segments: bool = False


def classify(masks: list[tuple[Value, tuple[str, ...], bool]], q_len: int, kv_len: int) -> Pattern:
    """Combines several masks.

    Each comes with a letter (``b n t s``, or ``""``) an axis, and whether True means that the pair is *not* seen.
    """
    dims: set[str] = set()
    has_segments = False
    seen = np.ones((0, 0), bool)
    rows = np.unique(np.linspace(0, q_len - 1, min(ROWS, q_len)).astype(np.int64))
    seen = np.ones((len(rows), kv_len), bool)
    for value, letters, negated in masks:
        for leaf, at in _leaves(value, letters, negated):
            if is_known(leaf):
                own = varying(leaf)
                named = {letter for i, letter in enumerate(at) if letter and i in own}
                if named & {"b", "n"}:
                    dims |= named
                else:
                    found = _evaluate(leaf, at, rows, kv_len).astype(bool)
                    seen &= ~found if negated else found
            elif _compares_segments(leaf, at):
                has_segments = True
            else:
                own = varying(leaf)
                dims |= {letter for i, letter in enumerate(at) if letter and i in own}
    return _fit(rows, seen, q_len, kv_len, frozenset(dims), has_segments)


def varying(value: Value, cache: dict[Value, frozenset[int]] | None = None) -> frozenset[int]:
    """The axes along which ``value`` may differ."""
    cache = {} if cache is None else cache
    if value not in cache:
        # What is made in so many steps is no mask, and may be all of a model: it differs along every axis.
        cache[value] = _every(value)
        if len(cache) < MAX_STEPS:
            cache[value] = _varying(value, cache)
    return cache[value]


def is_known(value: Value, cache: dict[Value, bool] | None = None) -> bool:
    """Whether ``value`` is made of iotas and constants alone, by operations that can be evaluated here."""
    cache = {} if cache is None else cache
    if value not in cache:
        cache[value] = False
        if len(cache) >= MAX_STEPS:
            return False
        if value.kind == "constant":
            cache[value] = value.attributes.get("value") is not None
        elif value.kind in _BINARY or value.kind in _OTHERS:
            cache[value] = all(is_known(v, cache) for v in value.inputs)
        else:
            cache[value] = value.kind == "iota"
    return cache[value]


def evaluate_scalar(value: Value) -> float | None:
    """The number that a value of one distinct element holds, if that is known."""
    if not is_known(value) or varying(value):
        return None
    try:
        index = tuple(np.zeros(1, np.int64) for _ in value.shape)
        return float(_at(value, index)[0])
    except (_Unknown, TypeError, ValueError):
        return None


def sample(value: Value, letters: tuple[str, ...], q_len: int, kv_len: int) -> Any:
    """Some rows of a known value, ``[rows, S]``."""
    rows = np.unique(np.linspace(0, q_len - 1, min(ROWS, q_len)).astype(np.int64))
    return _evaluate(value, letters, rows, kv_len)


def _leaves(value: Value, letters: tuple[str, ...], negated: bool) -> Iterator[tuple[Value, tuple[str, ...]]]:
    """The parts that must all hold, each with the letters of its axes."""
    if is_known(value):
        yield value, letters
    elif value.kind in ("transpose", "broadcast", "reshape"):
        yield from _leaves(value.inputs[0], _inner_letters(value, letters), negated)
    elif value.kind in ("convert", "copy"):
        yield from _leaves(value.inputs[0], letters, negated)
    elif (value.kind in _AND and not negated) or (value.kind == "or" and negated):
        for part in value.inputs:
            yield from _leaves(part, _own(part, letters), negated)
    elif value.kind == "compare" and not negated and _is_nonzero_test(value):
        yield from _leaves(value.inputs[0], _own(value.inputs[0], letters), negated)
    elif value.kind == "select" and not negated and evaluate_scalar(value.inputs[2]) == 0:
        for part in value.inputs[:2]:
            yield from _leaves(part, _own(part, letters), negated)
    else:
        yield value, letters


def _own(operand: Value, letters: tuple[str, ...]) -> tuple[str, ...]:
    """The letters of an operand that may be a scalar, or repeated along some axes."""
    return letters if operand.shape else ()


def _is_nonzero_test(value: Value) -> bool:
    return value.attributes["direction"] in ("NE", "GT") and evaluate_scalar(value.inputs[1]) == 0


def _compares_segments(value: Value, letters: tuple[str, ...]) -> bool:
    if value.kind != "compare" or value.attributes["direction"] != "EQ":
        return False
    if any(not v.shape for v in value.inputs):
        return False
    sides = [{letters[i] for i in varying(v) if letters[i]} for v in value.inputs]
    return sorted(sorted(side - {"b"}) for side in sides) == [["s"], ["t"]]


def _inner_letters(value: Value, letters: tuple[str, ...]) -> tuple[str, ...]:
    """The letters of the axes of the operand that ``value`` arranges."""
    inner = value.inputs[0]
    if value.kind == "transpose":
        found = [""] * len(inner.shape)
        for i, dim in enumerate(value.attributes["dims"]):
            found[dim] = letters[i]
        return tuple(found)
    if value.kind == "broadcast":
        dims: list[int] = value.attributes["dims"]
        return tuple(letters[dim] if size > 1 else "" for size, dim in zip(inner.shape, dims, strict=True))
    found = [""] * len(inner.shape)
    for inside, outside in _aligned(inner.shape, value.shape):
        named = [letters[i] for i in outside if value.shape[i] > 1]
        large = [i for i in inside if inner.shape[i] > 1]
        for i, axis in enumerate(large):
            found[axis] = named[min(i, len(named) - 1)] if named else ""
    return tuple(found)


def _aligned(before: tuple[int, ...], after: tuple[int, ...]) -> Iterator[tuple[list[int], list[int]]]:
    """Groups of axes of a reshape that hold the same elements."""
    i = j = 0
    while i < len(before) or j < len(after):
        inside: list[int] = []
        outside: list[int] = []
        left = right = 1
        while True:
            if (left <= right and i < len(before)) or j >= len(after):
                if i >= len(before):
                    break
                inside.append(i)
                left *= before[i]
                i += 1
            else:
                outside.append(j)
                right *= after[j]
                j += 1
            if left == right and inside and outside:
                break
        yield inside, outside


def _varying(value: Value, cache: dict[Value, frozenset[int]]) -> frozenset[int]:
    every = _every(value)
    if value.kind == "iota":
        return every & set(value.attributes["dims"])
    if value.kind == "constant":
        data = value.attributes.get("value")
        return every if data is None or getattr(data, "ndim", 0) else frozenset()
    if value.kind == "transpose":
        inner = varying(value.inputs[0], cache)
        return frozenset(i for i, d in enumerate(value.attributes["dims"]) if d in inner)
    if value.kind == "broadcast":
        inner = varying(value.inputs[0], cache)
        return frozenset(d for i, d in enumerate(value.attributes["dims"]) if i in inner)
    if value.kind == "reshape":
        inner = varying(value.inputs[0], cache)
        groups = _aligned(value.inputs[0].shape, value.shape)
        return every & {j for inside, out in groups if inner & set(inside) for j in out}
    if value.kind in ELEMENTWISE:
        return frozenset[int]().union(*(varying(v, cache) for v in value.inputs)) & every
    return every


def _every(value: Value) -> frozenset[int]:
    return frozenset(i for i, size in enumerate(value.shape) if size > 1)


def _evaluate(value: Value, letters: tuple[str, ...], rows: Any, kv_len: int) -> Any:
    t, s = np.repeat(rows, kv_len), np.tile(np.arange(kv_len), len(rows))
    places = {"t": t, "s": s}
    index: list[Any] = []
    for size, letter in zip(value.shape, letters, strict=True):
        index.append(places[letter] if size > 1 and letter in places else np.zeros_like(t))
    return np.broadcast_to(_at(value, tuple(index)), t.shape).reshape(len(rows), kv_len)


def _at(value: Value, index: tuple[Any, ...]) -> Any:
    """The elements of a known value at ``index``, one array an axis."""
    inputs = value.inputs
    if value.kind == "iota":
        return index[value.attributes["dims"][0]]
    if value.kind == "constant":
        data = np.asarray(value.attributes["value"])
        return data[index] if data.ndim else np.broadcast_to(data, index[0].shape if index else (1,))
    if value.kind == "transpose":
        inner: list[Any] = [None] * len(index)
        for i, dim in enumerate(value.attributes["dims"]):
            inner[dim] = index[i]
        return _at(inputs[0], tuple(inner))
    if value.kind == "broadcast":
        if not inputs[0].shape:
            return np.broadcast_to(_at(inputs[0], ()), index[0].shape if index else (1,))
        picked = [
            index[d] if size > 1 else np.zeros_like(index[d])
            for size, d in zip(inputs[0].shape, value.attributes["dims"], strict=True)
        ]
        return _at(inputs[0], tuple(picked))
    if value.kind == "reshape":
        if not inputs[0].shape or not value.shape:
            return np.broadcast_to(
                _at(inputs[0], tuple(np.zeros(1, np.int64) for _ in inputs[0].shape)),
                index[0].shape if index else (1,),
            )
        flat = np.ravel_multi_index(index, value.shape)
        return _at(inputs[0], tuple(np.unravel_index(flat, inputs[0].shape)))
    values = [_at(v, _repeated(v.shape, value.shape, index)) for v in inputs]
    if value.kind == "divide" and not value.dtype.startswith(("i", "s", "u")):
        return np.divide(*values)
    if value.kind in _BINARY:
        return _BINARY[value.kind](*values)
    if value.kind == "compare":
        return _COMPARE[value.attributes["direction"]](*values)
    if value.kind == "select":
        return np.where(*values)  # pyright: ignore[reportUnknownVariableType]
    if value.kind == "not":
        return np.logical_not(values[0])
    if value.kind == "negate":
        return np.negative(values[0])
    if value.kind == "abs":
        return np.abs(values[0])
    if value.kind in ("convert", "copy"):
        return values[0].astype(bool) if value.dtype == "bool" else values[0]
    raise _Unknown(value.kind)


def _repeated(operand: tuple[int, ...], result: tuple[int, ...], index: tuple[Any, ...]) -> tuple[Any, ...]:
    """The index into an operand that is repeated along axes where it has size 1; a scalar has none."""
    if not operand:
        return ()
    pairs = zip(operand, result, index, strict=True)
    return tuple(np.zeros_like(i) if a != b else i for a, b, i in pairs)


def _fit(rows: Any, seen: Any, q_len: int, kv_len: int, dims: frozenset[str], has_segments: bool) -> Pattern:
    """Finds the causal edge and the window that ``seen`` shows, aligned at the bottom right."""
    rest: dict[str, Any] = {"dims": dims, "has_segments": has_segments}
    dense = Pattern(dims=dims | {"t", "s"}, has_segments=has_segments)
    some = seen.any(axis=1)
    if seen.all() or not some.any():
        return Pattern(**rest)
    rows, seen = rows[some], seen[some]
    first, last = seen.argmax(axis=1), kv_len - 1 - seen[:, ::-1].argmax(axis=1)
    if (seen.sum(axis=1) != last - first + 1).any():
        return dense
    position = rows + kv_len - q_len
    right = _edge(last - position, last == kv_len - 1)
    left = _edge(position - first, first == 0)
    if right == "none" or left == "none":
        return dense
    if (isinstance(right, int) and right < 0) or (isinstance(left, int) and left < 0):
        return dense
    causal = right == 0
    return Pattern(
        causal=causal,
        left=left if isinstance(left, int) else None,
        right=None if causal or not isinstance(right, int) else right,
        **rest,
    )


def _edge(distance: Any, at_border: Any) -> int | str | None:
    """The one distance of an edge from the diagonal; None if it is always the border, ``"none"`` if there is none."""
    inside = distance[~at_border]
    if not len(inside):
        return None
    edge = int(inside[0])
    if (inside != edge).any() or (distance[at_border] > edge).any():
        return "none"
    return edge
