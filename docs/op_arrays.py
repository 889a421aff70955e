"""The arrays that an op takes and returns, over the values of its fields, for the op's page.

No single problem has all arrays. So each field is varied alone, in a few settings of the others; what then changes
depends on that field.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attn_tune.ops.contract import WORKLOAD, Op, load
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import REQUIRED, Field, Signature

# A problem whose required sizes are all this shows which axis is which: one size changes, and axes with it.
SIZE = 8
# A size that may be left out is smaller, so that a length has more than one of it.
PART = 4
# Others by a field that only some ops have: blocks of a mask are at least 16, and axes of a cache that trade places are
# distinct.
SIZES = {"bq": {"bq": 16, "bk": 16, "t": 64, "s": 64}, "layout": {"s": 32}}
# Two fields that some values want equal: they change together where neither changes alone.
_PAIRS = {"t": "s", "s": "t", "h": "v", "v": "h"}
# Some values need others: scales codes, latents one key head, scales of their blocks wide heads, offsets one sequence.
_CODES: dict[str, Any] = {"kv": "float8_e4m3fn"}
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    _CODES,
    _CODES | {"kvscale": "tensor"},
    {"k": 1},
    {"seg": 1},
    {"seg": 1, "b": 1},
    _CODES | {"layout": "latent", "k": 1, "h": 256, "v": 128},
)
_CHOICE = re.compile(r"`(\w+)`")
type Form = Mapping[str, str]
# Of an op, a problem, a direction, and the problem of the setting.
type Forms = Callable[[Op, Any, str, Any], dict[str, Form]]


@dataclass(frozen=True)
class Case:
    """One problem, and the value of the field by which it differs from its setting.

    Attributes:
      setting: the values of other fields.
      own: the problem of the setting itself.
      problem: the problem.
      field, value: the field, and its value here.
    """

    setting: Mapping[str, Any]
    own: Any
    problem: Any
    field: Field
    value: Any


def choices(field: Field) -> tuple[Any, ...]:
    """The values that the text of a field has in code marks; ``PART`` for a size that may be left out."""
    words = _CHOICE.findall(field.doc)
    named = tuple(int(word) for word in words if word.isdigit()) if field.is_int else tuple(words)
    return (*named, PART) if _is_size(field, named) else named


def _is_size(field: Field, named: tuple[Any, ...]) -> bool:
    return field.is_int and all(value == field.default for value in named)


def plain(op: Op, **values: Any) -> Any:
    """The problem that has nothing but its required sizes, and ``values``.

    Raises:
      UsageError: there is no such problem.
    """
    required = {f.name: SIZE if f.is_int else "bfloat16" for f in op.fields if f.default == REQUIRED}
    return op.from_signature(Signature.build(op.name, op.version, op.fields, required | values))


@functools.cache
def cases(op: Op) -> tuple[Case, ...]:
    """A case for each value of each optional field, in the first setting that takes it."""
    names = {field.name for field in op.fields}
    found: dict[tuple[str, Any], Case] = {}
    for setting in (one for one in SETTINGS if names.issuperset(one)):
        with contextlib.suppress(UsageError):
            own = _of_setting(op, setting)
            for field in op.fields:
                if field.default == REQUIRED or field.name in (WORKLOAD, "bq", "bk"):
                    continue
                for value in choices(field):
                    if value != field.default and (field.name, value) not in found:
                        with contextlib.suppress(UsageError):
                            problem = _of_setting(op, {**setting, field.name: value})
                            found[field.name, value] = Case(setting, own, problem, field, value)
    return tuple(found.values())


def _of_setting(op: Op, setting: Mapping[str, Any]) -> Any:
    names = {field.name for field in op.fields}
    sizes = {n: size for of, sizes in SIZES.items() if of in names for n, size in sizes.items() if n in names}
    return plain(op, **{**sizes, **setting})


def operands(op: Op) -> list[list[str]]:
    """The rows of operands: name, directions, on what it depends, shape, dtype, differentiable, in place."""
    return [
        [f"`{name}`", ", ".join(found.directions), found.only_with, *map(found.text, _ASPECTS)]
        for name, found in _collected(op, op.directions, _operands).items()
    ]


def outputs(op: Op) -> list[list[str]]:
    """The rows of outputs: name, direction, on what it depends, kind, gradient of, may be left out, takes over."""
    return [
        [f"`{name}`", direction, found.only_with, *map(found.text, _KINDS)]
        for direction in op.directions
        for name, found in _collected(op, (direction,), _outputs).items()
    ]


_ASPECTS = ("shape", "dtype", "differentiable", "in place")
_KINDS = ("kind", "of", "optional", "updates")


class _Array:
    """One array over all cases.

    Attributes:
      directions: those that have it.
      first: its form where it was seen first.
      others: other forms of each aspect, by the fields and values that bring them.
      values: the fields that bring it or take it away, each with the values that have it.
      fields: those and the fields of ``others``, by name.
    """

    def __init__(self, first: Form):
        self.directions: list[str] = []
        self.first = first
        self.others: dict[tuple[str, str], dict[str, list[Any]]] = {}
        self.values: dict[str, list[Any]] = {}
        self.fields: dict[str, Field] = {}

    @property
    def only_with(self) -> str:
        """The values without which it is not there; empty if it always is."""
        return _conditions(self.values, self.fields)

    def text(self, aspect: str) -> str:
        """The cell of an aspect: its first form, and others with the values that bring them."""
        more = [
            f"{_conditions(values, self.fields)}: {form or 'no'}"
            for (one, form), values in self.others.items()
            if one == aspect
        ]
        return "; ".join(filter(None, [self.first[aspect], *(f"with {one}" for one in more)])).removesuffix(": yes")


def _collected(op: Op, directions: Iterable[str], forms: Forms) -> dict[str, _Array]:
    """The arrays of all cases by name."""
    found: dict[str, _Array] = {}
    for direction in directions:
        plainest = _of_setting(op, {})
        here = forms(op, plainest, direction, None)
        for name, form in here.items():
            array = found.setdefault(name, _Array(form))
            array.directions.append(direction)
        for case in cases(op):
            before = forms(op, case.own, direction, None)
            now = forms(op, case.problem, direction, case.own)
            for name, form in (before | now).items():
                array = found.setdefault(name, _Array(form))
                array.fields[case.field.name] = case.field
                if direction not in array.directions:
                    array.directions.append(direction)
                if (name in now) != (name in before):
                    every = [case.field.default, *(c.value for c in cases(op) if c.field is case.field)]
                    values = array.values.setdefault(case.field.name, every if name in here else [])
                    if name in now and case.value not in values:
                        values.append(case.value)
                    if name not in now and case.value in values:
                        values.remove(case.value)
                if name in now:
                    _add_others(array, case, now[name], before.get(name) or array.first)
    return found


def _add_others(array: _Array, case: Case, now: Form, before: Form) -> None:
    """Note the aspects that the value of ``case`` changes, or changes as the value of its setting does."""
    field = case.field.name
    for aspect, form in now.items():
        known = array.others.get((aspect, form), {})
        like = case.setting.get(field) in known.get(field, ())
        if form != before[aspect] or like:
            values = array.others.setdefault((aspect, form), {}).setdefault(field, [])
            values += [case.value] if case.value not in values else []


def _conditions(values: Mapping[str, list[Any]], fields: Mapping[str, Field]) -> str:
    """Fields and values in words: ``state=in`` or ``both``."""
    return " or ".join(_condition(fields[name], found) for name, found in values.items() if found)


def _condition(field: Field, values: list[Any]) -> str:
    if field.default is None or _is_size(field, tuple(value for value in choices(field) if value != PART)):
        return f"`{field.name}`"
    first, *rest = (f"`{value}`" for value in values)
    words = [f"`{field.name}={first[1:]}", *rest]
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _outputs(op: Op, problem: Any, direction: str, own: Any) -> dict[str, Form]:
    return {
        one.name: {
            "kind": str(one.kind),
            "of": one.of,
            "optional": "yes" if one.optional else "",
            "updates": one.updates,
        }
        for one in op.outputs(problem, direction)
    }


@functools.cache
def _operands(op: Op, problem: Any, direction: str, own: Any) -> dict[str, Form]:
    declared = {one.name: one for one in op.operands(problem, direction)}
    leaves = _leaves(op, problem, direction)
    # Names of axes are dear, and those of an array of the same shape are the same: in the setting, and of the forward.
    known: dict[str, tuple[tuple[int, ...], str, Form]] = {}
    for other, of in ((problem, op.directions[0]), (own, direction)):
        if other is not None and (other, of) != (problem, direction):
            forms = _operands(op, other, of, own if other is problem else None)
            known |= {name: (*found, forms[name]) for name, found in _leaves(op, other, of).items()}
    return {
        name: {
            "shape": known[name][2]["shape"]
            if name in known and known[name][0] == shape
            else " x ".join(_axes(op, problem, direction, name)) or "one number",
            "dtype": known[name][2]["dtype"]
            if name in known and known[name][1] == dtype
            else _dtype(op, problem, direction, name),
            "differentiable": "yes" if name in declared and declared[name].differentiable else "",
            "in place": "yes" if name in declared and declared[name].in_place else "",
        }
        for name, (shape, dtype) in leaves.items()
    }


@functools.cache
def _leaves(op: Op, problem: Any, direction: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes and dtypes of the inputs of a call, by name."""
    import jax

    inputs = functools.partial(load(op.inputs), problem, direction)
    tree = jax.eval_shape(inputs, jax.ShapeDtypeStruct((), "int32"))
    return {
        jax.tree_util.keystr(path[-1:], simple=True): (leaf.shape, str(leaf.dtype))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _dtype(op: Op, problem: Any, direction: str, name: str) -> str:
    """The field that gives the dtype, else the dtype."""
    dtype = _leaves(op, problem, direction)[name][1]
    values = problem.signature.values
    with contextlib.suppress(UsageError):
        other = op.from_signature(Signature.build(op.name, op.version, op.fields, values | {"dtype": "float16"}))
        if _leaves(op, other, direction)[name][1] != dtype:
            return "`dtype`"
    if dtype.startswith("key<"):
        return "key of `jax.random`"
    return "`kv`" if dtype == values.get("kv") else dtype


def _axes(op: Op, problem: Any, direction: str, name: str) -> Iterator[str]:
    """A name for each axis of an array: the field with which it grows or shrinks, or one more, else its size."""
    shape = _leaves(op, problem, direction)[name][0]
    sizes: dict[str, int] = {}
    found: dict[str, list[int]] = {}
    for field in op.fields:
        other = field.is_int and _changed(op, problem, field.name)
        if other:
            now = _leaves(op, other, direction).get(name, ((), ""))[0]
            found[field.name] = [axis for axis, (old, new) in enumerate(zip(shape, now, strict=False)) if old != new]
            sizes[field.name] = problem.signature.values[field.name]
    for axis, size in enumerate(shape):
        # A size that others follow from changes several axes; an axis is named by the field that changes the fewest.
        names = sorted((field for field, axes in found.items() if axis in axes), key=lambda field: len(found[field]))
        yield _axis(size, names, sizes)


def _axis(size: int, names: list[str], sizes: Mapping[str, int]) -> str:
    """The name of an axis of ``size`` on which the fields ``names`` have a part."""
    if not names:
        return str(size)
    for one in names:
        for other in names:
            if one != other and size == -(-sizes[one] // sizes[other]):
                return f"`{one} / {other}`"
    if "page" in names:
        return "`page`" if size == sizes["page"] else "pages"
    first, length = names[0], sizes[names[0]]
    # Boundaries of sequences are one more than there are sequences; keys and values may lie in turn.
    known = {length: f"`{first}`", length + 1: f"`{first} + 1`", 2 * length: f"`2 {first}`"}
    return known.get(size) or f"f({', '.join(f'`{name}`' for name in sorted(names))})"


def _changed(op: Op, problem: Any, field: str) -> Any:
    """``problem`` with another value of one field; None if no other value makes a problem."""
    values = problem.signature.values
    value = values.get(field)
    for other in (2 * value, value // 2) if isinstance(value, int) and value > 1 else ():
        for pair in ((field,), (field, _PAIRS.get(field, ""))):
            changed = values | {name: other for name in pair if name in values}
            with contextlib.suppress(UsageError):
                return op.from_signature(Signature.build(op.name, op.version, op.fields, changed))
    return None
