"""The page of each op, made from its declaration and those of its kernels. ``generate.py`` writes them."""

import contextlib
import dataclasses
import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attn_tune.kernels.knobs import knobs_of
from attn_tune.kernels.registry import kernels
from attn_tune.ops.contract import Op, load
from attn_tune.ops.registry import ops
from attn_tune.reports.tables import markdown_table
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import REQUIRED, Signature

# A problem whose required sizes are all this shows which axis is which: one size changes, and axes with it.
SIZE = 8
# Of optional fields, to see the arrays that come with them: a flag, the axes of a dense array, a dtype.
VALUES = ("1", "bnts", "float32", "float8_e4m3fn")


def pages() -> dict[str, str]:
    """The text of each page by the op's name."""
    return {name: _page(op) for name, op in ops().items()}


def _page(op: Op) -> str:
    reference = sys.modules[load(op.reference).__module__]
    source = f"{reference.__name__.replace('.', '/')}.py"
    functions = ", ".join(f"`attn_tune.{path.partition(':')[2]}`" for path in op.functions)
    features = [problem.signature.text for problem in load(op.features)(_plain(op))]
    parts = [
        f"# `{op.name}`",
        f"{_sentence(op.summary)} Made by `make docs`; the words are those of the [glossary](../glossary.md).",
        _table(
            ["", ""],
            [
                ["contract", f"`{op.name}/v{op.version}`"],
                ["directions", ", ".join(f"`{d}`" for d in op.directions)],
                ["called as", functions],
                ["grid lengths", " x ".join(f"`{axis.field}`" for axis in op.axes)],
            ],
        ),
        "## Fields of a signature",
        "A categorical field must match at lookup; a scalable one may be rounded up to a power of two, or borrowed "
        "from a neighbour within a factor of two.",
        _table(["field", "matching", "required", "meaning"], _fields(op)),
        "## Operands",
        "Axes have the names of fields; a number is the same for every problem of this kind.",
        _table(["operand", "directions", "shape", "dtype", "differentiable", "in place"], _operands(op)),
        "## Outputs",
        "The kind decides the [rule of proof](../validation.md).",
        _table(
            ["output", "direction", "kind", "gradient of", "may be left out", "takes over"],
            _outputs(op),
        ),
        "## Workloads",
        _table(["workload", "what"], [[f"`{w.name}`", w.summary] for w in op.workloads])
        or "One: the inputs of a problem follow from its signature.",
        "## Feature problems",
        f"A config of `{_plain(op).signature.text}` must also be right on:",
        "\n".join(f"- `{text}`" for text in features),
        _samples(op),
        "## The formula",
        _indented(reference.__doc__),
        f"It is computed in [`{source}`](../../{source}).",
        "## Kernels",
        *_kernels(op),
    ]
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def _fields(op: Op) -> Iterator[list[str]]:
    for field in op.fields:
        required = "yes" if field.default == REQUIRED else ""
        yield [f"`{field.name}`", str(field.kind), required, field.doc]


def _operands(op: Op) -> Iterable[list[str]]:
    rows: dict[tuple[str, ...], list[str]] = {}
    for problem in _problems(op):
        for direction in op.directions:
            for operand in op.operands(problem, direction):
                shape = " x ".join(_axes(op, problem, direction, operand))
                flags = ("yes" if f else "" for f in (operand.differentiable, operand.in_place))
                row = (f"`{operand.name}`", shape, operand.dtype, *flags)
                # One form of an operand is enough: others have other dtypes and axes of size one.
                if not any(row[0] == known[0] and row != known for known in rows):
                    directions = rows.setdefault(row, [])
                    directions += [direction] if direction not in directions else []
    return [[name, ", ".join(found), *rest] for (name, *rest), found in rows.items()]


def _outputs(op: Op) -> Iterable[list[str]]:
    rows: dict[tuple[str, ...], None] = {}
    for direction in op.directions:
        for problem in _problems(op):
            for output in op.outputs(problem, direction):
                optional = "yes" if output.optional else ""
                row = (
                    f"`{output.name}`",
                    direction,
                    str(output.kind),
                    output.of,
                    optional,
                    output.updates,
                )
                rows[row] = None
    return map(list, rows)


def _problems(op: Op) -> list[Any]:
    """The plain problem, then one for each optional field and each of ``VALUES`` that the field takes."""
    problems, plain = [_plain(op)], _plain(op).signature.values
    for field in op.fields:
        for value in VALUES if field.default != REQUIRED else ():
            with contextlib.suppress(UsageError, ValueError):
                values = {**plain, field.name: int(value) if field.is_int else value}
                problems.append(op.from_signature(Signature.build(op.name, op.version, op.fields, values)))
    return problems


def _plain(op: Op) -> Any:
    """The problem that has nothing but its required sizes."""
    required = (field for field in op.fields if field.default == REQUIRED)
    words = (f"{f.name}={SIZE if f.is_int else 'bfloat16'}" for f in required)
    return op.from_signature(op.parse_signature(f"{op.name}/v{op.version} {' '.join(words)}"))


def _axes(op: Op, problem: Any, direction: str, operand: Any) -> Iterator[str]:
    """A name for each axis of ``operand``: the field with which it grows or shrinks, or one more, else its size."""
    if operand.shape is None:
        return
    found: dict[str, list[int]] = {}
    lengths: dict[str, int] = {}
    for field in op.fields:
        other = field.is_int and _changed(op, problem, field.name)
        if not other:
            continue
        shapes = {o.name: o.shape for o in op.operands(other, direction)}
        sizes = zip(operand.shape, shapes.get(operand.name) or (), strict=False)
        found[field.name] = [axis for axis, (size, now) in enumerate(sizes) if size != now]
        lengths[field.name] = problem.signature.values.get(field.name) or 0
    names: dict[int, str] = {}
    # A size that others follow from changes several axes; an axis is named by the field that changes the fewest.
    for field, changed in sorted(found.items(), key=lambda item: len(item[1])):
        for axis in changed:
            # Boundaries of sequences are one more than there are sequences.
            more = " + 1" if operand.shape[axis] == lengths[field] + 1 else ""
            names.setdefault(axis, f"`{field}{more}`")
    yield from (names.get(axis, str(size)) for axis, size in enumerate(operand.shape))


def _changed(op: Op, problem: Any, field: str) -> Any:
    """``problem`` with another value of one field; None if no other value makes a problem."""
    signature = problem.signature
    value = signature.values.get(field)
    for other in (2 * value, value // 2) if isinstance(value, int) and value > 1 else ():
        text = signature.text.replace(f" {field}={value}", f" {field}={other}")
        with contextlib.suppress(UsageError):
            return op.from_signature(op.parse_signature(text))
    return None


def _samples(op: Op) -> str:
    if not op.samples:
        return ""
    names = ", ".join(f"`{name}`" for name in load(op.samples)())
    text = f"`attn-tune validate` runs tiny problems with each feature alone and some together: {names}."
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _kernels(op: Op) -> Iterator[str]:
    """The table of kernels, then the knobs of each."""
    found = [spec for spec in kernels().values() if spec.op == op.name and not spec.entry_point]
    yield _table(
        ["kernel", "backend", "directions", "what"],
        [[f"`{s.id}`", s.backend, ", ".join(s.searches), s.summary] for s in found],
    )
    yield (
        "For each knob: its launches, the values that it may have, those that a sweep tries before the problem narrows "
        "them (none if they follow from the problem alone), and its default where it has one."
    )
    for spec in found:
        launches: dict[tuple[str, ...], list[str]] = {}
        for direction, search in spec.searches.items():
            for part, config in _launches(search.config):
                for row in _knob_rows(config):
                    launches.setdefault(row, []).append(f"{direction} {part}".strip())
        rows = [[name, ", ".join(names), *rest] for (name, *rest), names in launches.items()]
        yield f"### `{spec.id}`"
        yield (_table(["knob", "launches", "may be", "tried", "default", "chooses"], rows) or "No knobs.")


def _launches(config: type) -> list[tuple[str, type]]:
    parts = [
        (field.name, field.type)
        for field in dataclasses.fields(config)
        if isinstance(field.type, type) and dataclasses.is_dataclass(field.type)
    ]
    return parts or [("", config)]


def _knob_rows(config: type) -> Iterator[tuple[str, ...]]:
    defaults: Mapping[str, Any] = {field.name: field.default for field in dataclasses.fields(config)}
    for name, (knob, is_optional) in knobs_of(config).items():
        default = defaults[name]
        yield (
            f"`{name}`",
            knob.allowed + (", or None" if is_optional else ""),
            ", ".join(map(str, knob.tried)),
            "" if default is dataclasses.MISSING else str(default),
            knob.doc,
        )


def _table(header: list[str], rows: Iterable[list[str]]) -> str:
    """A table without columns that are empty; no table without rows."""
    rows = list(rows)
    kept = [i for i in range(len(header)) if any(row[i] for row in rows)]
    return markdown_table([header[i] for i in kept], [[row[i] for i in kept] for row in rows]) if rows else ""


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _indented(text: str | None) -> str:
    lines = inspect.cleandoc(text or "").replace("``", "`").splitlines()
    return "\n".join(f"> {line}".rstrip() for line in lines)
