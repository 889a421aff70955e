"""Compare the public API with its record, ``tools/public_api.txt``.

    python tools/public_api.py --write

Public are the names of ``attn_tune.__all__``, all that the pages import, the modules for authors of ops and kernels,
and the functions of other libraries. They are read from the source, so that annotations stay as they are written and a
module that moves changes nothing. Without ``--write`` prints the difference, and exits with 1 if there is one.
"""

import difflib
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from griffe import Alias, Class, Function, GriffeLoader, Module, ParameterKind

ROOT = Path(__file__).resolve().parent.parent
RECORD = Path(__file__).with_suffix(".txt")
# For authors of ops and kernels; every public name that is defined there counts.
MODULES = (
    "attn_tune.ops.contract",
    "attn_tune.kernels.spec",
    "attn_tune.kernels.knobs",
    "attn_tune.api.call",
    "attn_tune.api.declaration",
)
# The functions of other libraries by their names: all that ``__all__`` lists.
PACKAGES = ("attn_tune.integrations.ejkernel",)
_IMPORT = re.compile(r"^from (attn_tune[\w.]*) import ([\w, ]+)$", re.MULTILINE)
_STARS = {ParameterKind.var_positional: "*", ParameterKind.var_keyword: "**"}


def changes() -> str:
    """The difference between the record and the source; empty if there is none."""
    lines = difflib.unified_diff(
        RECORD.read_text(encoding="utf-8").splitlines(),
        text().splitlines(),
        "recorded",
        "now",
        lineterm="",
    )
    return "\n".join(lines)


@functools.cache
def text() -> str:
    """The signature of every public name, in the order of the alphabet."""
    import attn_tune

    loader = GriffeLoader(search_paths=[ROOT])
    package = loader.load("attn_tune")
    loader.resolve_aliases()
    names = {f"attn_tune.{name}" for name in attn_tune.__all__}
    for page in ROOT.glob("docs/*.md"):
        for module, imported in _IMPORT.findall(page.read_text(encoding="utf-8")):
            names |= {f"{module}.{name.strip()}" for name in imported.split(",")}
    for module in MODULES:
        members = package[module.partition(".")[2]].members
        names |= {f"{module}.{n}" for n, m in members.items() if not (m.is_alias or n.startswith("_"))}
    for exporting in PACKAGES:
        names |= {f"{exporting}.{name}" for name in package[exporting.partition(".")[2]].exports or ()}
    lines = (line for name in sorted(names) for line in _lines(name, package[name.partition(".")[2]]))
    return "\n".join(lines) + "\n"


def _lines(name: str, item: Any) -> Iterator[str]:
    item = item.final_target if isinstance(item, Alias) else item
    if isinstance(item, Module):  # a function of the same name hides it
        item = item[item.name]
    if isinstance(item, Class):
        yield f"class {name}({', '.join(map(str, item.bases))})"
        yield from (f"    @{decorator.value}" for decorator in item.decorators)
        for member, value in item.members.items():
            # The one of a dataclass follows from its fields.
            if not member.startswith("_") or (member == "__init__" and "dataclass" not in item.labels):
                yield from (f"    {line}" for line in _lines(member, value))
    elif isinstance(item, Function):
        yield from (f"@{decorator.value}" for decorator in item.decorators)
        for form in [*(item.overloads or ()), item]:
            yield from f"def {name}({_parameters(form)}) -> {form.returns}".split("\n")
    else:
        annotation = f": {item.annotation}" if getattr(item, "annotation", None) else ""
        value = f" = {item.value}" if item.value and "property" not in item.labels else ""
        yield name + annotation + value


def _parameters(function: Function) -> str:
    """The parameters as in the source; many have a line each."""
    found, last = [], None
    for parameter in function.parameters:
        kind = parameter.kind or ParameterKind.positional_or_keyword
        if last is ParameterKind.positional_only is not kind:
            found.append("/")
        if kind is ParameterKind.keyword_only and last not in (kind, ParameterKind.var_positional):
            found.append("*")
        last = kind
        annotation = f": {parameter.annotation}" if parameter.annotation else ""
        default = f" = {parameter.default}" if parameter.default and kind not in _STARS else ""
        found.append(_STARS.get(kind, "") + parameter.name + annotation + default)
    return "\n    " + ",\n    ".join(found) + "\n" if len(found) > 3 else ", ".join(found)


def main(words: list[str]) -> int:
    """Writes the record, or says in what the source differs from it."""
    if words == ["--write"]:
        RECORD.write_text(text(), encoding="utf-8")
        return 0
    difference = changes()
    print(difference)
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
