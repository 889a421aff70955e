"""The canonical syntax of a module: what of its source a digest counts, in a form that no version of Python changes."""

import ast
import functools
import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Stands in a canonical text for a run of imports. ``ascii`` escapes this character wherever a source has it.
_SLOT = "\x1a"


@dataclass(frozen=True)
class Reference:
    """One imported name, or one name of a ``"module:name"`` text.

    Attributes:
      module: the module that it comes from, if that is of this package or of the kernel's; else ``""``.
      text: the rest of it that counts.
    """

    module: str
    text: str


@dataclass(frozen=True)
class Syntax:
    """The canonical text of a module, with a slot for each run of references, and the runs."""

    text: str
    runs: tuple[tuple[Reference, ...], ...]


def canonical_source(source: str, module: str = "", packages: Iterable[str] = ()) -> Syntax:
    """The syntax of a module in ASCII, the same on every Python from 3.12 on.

    ``ast.dump`` will not do: 3.13 leaves out empty lists and fields that are None, and later versions add fields. Here
    a node is its class and those fields, by name, that say something. Texts are in ASCII because ``repr`` escapes what
    the interpreter's version of Unicode does not know. Imports that follow one another are in no order.

    Args:
      source: the module's source.
      module: the module's name, for relative imports.
      packages: the top-level packages whose modules are references.

    Raises:
      SyntaxError: ``source`` is no Python.
    """
    writer = _Writer(module, frozenset(packages))
    text = writer.text(ast.parse(source))
    return Syntax(text, tuple(writer.runs))


@functools.cache
def file_of_module(name: str) -> Path | None:
    """The file of a module; None if there is no such module, or it is no Python source. Imports nothing."""
    top, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a module of tests without a spec
        return None
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
    for folder in spec.submodule_search_locations or ():
        path = Path(folder, *rest)
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file
    return None


@dataclass
class _Writer:
    """Writes syntax trees as canonical text, and collects the runs of references."""

    package: str
    packages: frozenset[str]
    runs: list[tuple[Reference, ...]] = field(default_factory=list)

    def text(self, value: Any) -> str:
        if isinstance(value, list):
            return f"[{','.join(self._items(value))}]"
        if isinstance(value, ast.Constant):
            return self._constant(value)
        if not isinstance(value, ast.AST):
            return ascii(value)
        said = []
        for name in _field_names(type(value)):
            content = getattr(value, name, None)
            if content is None or content == []:
                continue
            if name == "body" and _has_docstring(value):
                content = content[1:]
            elif name == "values" and isinstance(value, ast.JoinedStr):
                # Some Pythons end the format of f"{x:{width}}" with an empty text.
                content = [part for part in content if not _is_empty_text(part)]
            if content != []:
                said.append(f"{name}={self.text(content)}")
        return f"{type(value).__name__}({','.join(said)})"

    def _items(self, values: list[Any]) -> Iterator[str]:
        run: list[Reference] = []
        for value in values:
            if isinstance(value, ast.Import | ast.ImportFrom):
                run.extend(self._imported(value))
                continue
            if run:
                yield self._slot(run)
                run = []
            yield self.text(value)
        if run:
            yield self._slot(run)

    def _slot(self, run: Iterable[Reference]) -> str:
        self.runs.append(tuple(run))
        return _SLOT

    def _constant(self, value: ast.Constant) -> str:
        # Without its ``kind``: u"" and "" are one constant.
        if isinstance(value.value, str) and ":" in value.value:
            module, _, name = value.value.partition(":")
            if name.isidentifier() and self._is_own(module):
                return self._slot([Reference(module, f"path {name}")])
        return f"{type(value.value).__name__}:{value.value!a}"

    def _imported(self, node: ast.Import | ast.ImportFrom) -> Iterator[Reference]:
        """One reference for each name of an import statement."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                here = alias.asname or alias.name
                if self._is_own(alias.name):
                    yield Reference(alias.name, f"import as {here}")
                else:
                    yield Reference("", f"import {alias.name} as {here}")
            return
        base = node.module or ""
        if node.level:
            parent = self.package.split(".")
            base = ".".join([*parent[: len(parent) - node.level + 1], *([base] if base else [])])
        for alias in node.names:
            here = alias.asname or alias.name
            whole = f"{base}.{alias.name}"
            if self._is_own(whole):
                yield Reference(whole, f"import as {here}")
            elif self._is_own(base):
                yield Reference(base, f"from {alias.name} as {here}")
            else:
                yield Reference("", f"from {base} import {alias.name} as {here}")

    def _is_own(self, module: str) -> bool:
        return module.partition(".")[0] in self.packages and file_of_module(module) is not None


@functools.cache
def _field_names(node: type[ast.AST]) -> tuple[str, ...]:
    return tuple(sorted(node._fields))


def _has_docstring(node: ast.AST) -> bool:
    if not isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return False
    return ast.get_docstring(node, clean=False) is not None


def _is_empty_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == ""
