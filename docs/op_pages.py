"""The page of each op, made from its declaration and those of its kernels. ``generate.py`` writes them."""

import contextlib
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

from op_arrays import operands, outputs, plain

from attn_tune.kernels.knobs import knobs_of
from attn_tune.kernels.registry import kernels
from attn_tune.ops.contract import Op, load
from attn_tune.ops.registry import ops
from attn_tune.reports.tables import markdown_table
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import REQUIRED, Field
from attn_tune.tuner.plan.small_problems import unsaid


def pages() -> dict[str, str]:
    """The text of each page by the op's name."""
    return {name: _page(op) for name, op in ops().items()}


def _page(op: Op) -> str:
    reference = sys.modules[load(op.reference).__module__]
    source = f"{reference.__name__.replace('.', '/')}.py"
    functions = ", ".join(f"`attn_tune.{path.partition(':')[2]}`" for path in op.functions)
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
        "## Calls",
        *_calls(op),
        "## Fields of a signature",
        "A categorical field must match at lookup; a scalable one may be rounded up to a power of two, or borrowed "
        "from a neighbour within a factor of two.",
        _table(["field", "matching", "default", "meaning"], [_field(op, field) for field in op.fields]),
        "## Attributes of a problem",
        "Fields of a signature are made of them. A kernel's functions read them, and properties that follow.",
        _table(["attribute", "default", "meaning"], _attributes(op.problem)),
        "## Operands",
        "Axes and dtypes have the names of fields; `f(...)` follows from several, and a number is the same for all "
        "problems. *Only with* names the values of fields without which an operand is not there."
        + (" Operands of `bwd` alone are what the forward left, and cotangents." if "bwd" in op.directions else ""),
        _table(["operand", "directions", "only with", "shape", "dtype", "differentiable", "in place"], operands(op)),
        "## Outputs",
        "The kind decides the [rule of proof](../validation.md).",
        _table(
            ["output", "direction", "only with", "kind", "gradient of", "may be left out", "takes over"],
            outputs(op),
        ),
        "## Workloads",
        _table(["workload", "what"], [[f"`{w.name}`", w.summary] for w in op.workloads])
        or "One: the inputs of a problem follow from its signature.",
        "## Feature problems",
        f"A config of `{plain(op).signature.text}` must also be right on:",
        *_features(op),
        _samples(op),
        "## The formula",
        *_formula(op, reference),
        f"It is computed in [`{source}`](../../{source}).",
        "## Kernels",
        *_kernels(op),
    ]
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def _field(op: Op, field: Field) -> list[str]:
    default = "required" if field.default == REQUIRED else "absent" if field.default is None else f"`{field.default}`"
    return [f"`{field.name}`", str(field.kind), default, f"{field.doc}{_dtypes(op) if field.name == 'dtype' else ''}"]


def _calls(op: Op) -> Iterator[str]:
    """The signatures of the public functions, without annotations."""
    blocks: list[str] = []
    for path in op.functions:
        parameters = inspect.signature(load(path)).parameters.values()
        plain_ones = (p.replace(annotation=inspect.Parameter.empty) for p in parameters)
        text = f"{path.partition(':')[2]}{inspect.Signature([*plain_ones])}".replace("'", '"')
        text = re.sub(r'<class "jax.numpy.(\w+)">', r"jnp.\1", text)
        indent = " " * (text.index("(") + 1)
        blocks.append(textwrap.fill(text, 100, subsequent_indent=indent, break_long_words=False))
    yield "```text\n" + "\n".join(blocks) + "\n```"
    yield "The [reference](../reference.md), or `help`, says what each takes."


def _attributes(problem: type) -> Iterator[list[str]]:
    rows: dict[tuple[str, str], list[str]] = {}
    for field in dataclasses.fields(problem):
        default = "required" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
        rows.setdefault((default, _attribute(problem, field.name)), []).append(f"`{field.name}`")
    for (default, meaning), names in rows.items():
        yield [", ".join(names), default, meaning]


def _dtypes(op: Op) -> str:
    """The dtypes that a problem may have."""
    found: list[str] = []
    for name in ("bfloat16", "float16", "float32"):
        with contextlib.suppress(UsageError):
            found.append(f"`{plain(op, dtype=name).signature.values['dtype']}`")
    return f" ({', '.join(found)})"


def _features(op: Op) -> Iterator[str]:
    """The list of feature problems, each with what its signature does not say; then the meaning of that."""
    lines: dict[str, None] = {}
    names: dict[str, None] = {}
    for problem in load(op.features)(plain(op)):
        own = unsaid(op, problem)
        names |= dict.fromkeys(own)
        beside = "".join(f", `{name}={f'{v:.3g}' if isinstance(v, float) else v}`" for name, v in own.items())
        lines[f"- `{problem.signature.text}`{beside}"] = None
    yield "\n".join(lines)
    if names:
        meanings = (f"- `{name}`: {_attribute(op.problem, name)}" for name in names)
        yield "What no signature says:\n\n" + "\n".join(meanings)


def _attribute(problem: type, name: str) -> str:
    """The text of an attribute in the docstring of a problem's type, or of one that it extends."""
    for owner in problem.__mro__:
        found = re.search(
            rf"^  (?:\w+, )*{name}(?:, \w+)*: (.*?)(?=^  \S|^\S|\Z)",
            inspect.getdoc(owner) or "",
            re.MULTILINE | re.DOTALL,
        )
        if found and "as there" not in found[1]:
            return _marked(" ".join(found[1].split())).removesuffix(" Not in the signature.")
    raise ValueError(f"{problem.__name__} says nothing of {name}")


def _formula(op: Op, reference: ModuleType) -> list[str]:
    """The text of the reference; of one that several ops share, the recurrence in that of the public function."""
    if reference.__name__.startswith(f"{op.package}."):
        return [_indented(reference.__doc__)]
    parts = inspect.cleandoc(load(op.functions[0]).__doc__ or "").split("\n\n")
    at = next(i for i, part in enumerate(parts) if part.lstrip().startswith("S = "))
    sources = [part for part in parts[at + 1 :] if "arXiv" in part]
    recurrence = f"```text\n{textwrap.dedent(parts[at])}\n```"
    return [_marked(parts[0]), _marked(parts[at - 1]), recurrence, *map(_marked, sources)]


def _marked(text: str) -> str:
    """``text`` of a docstring as that of a page."""
    return text.replace("::", ":").replace("``", "`")


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
    lines = _marked(inspect.cleandoc(text or "")).splitlines()
    return "\n".join(f"> {line}".rstrip() for line in lines)
