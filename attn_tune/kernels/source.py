"""The digest of a kernel's source: what its modules and all that they import say, whatever they are called.

The digest is made from canonical syntax. Comments, docstrings and formatting do not count, nor does the Python that
computes it. Names of files and packages do not count either: an import is the imported module's own digest. A module
can therefore move without making a stored row stale. Where names inside modules change and programs do not,
``source_aliases.json`` maps the old digest to the new one; ``attn-tune pack restamp`` proves it.

A module whose change leaves the generated code alone says so in a constant, ``DECIDES_NO_CODE = "reason"``. It and what
it imports are left out. In the ``__init__.py`` of a package the constant speaks for every module below.
"""

import ast
import functools
import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attn_tune.schema.digest import digest_text

MARK = "DECIDES_NO_CODE"
ALIASES = Path(__file__).with_name("source_aliases.json")
_PACKAGE = __name__.partition(".")[0]
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


@functools.cache
def source_hash(modules: tuple[str, ...], libraries: tuple[str, ...] = ()) -> str:
    """Digest of the source that ``modules`` reach, and of the versions of installed ``libraries``.

    A library that is not installed has no version: a hash of its own, which no row that was measured has.

    Raises:
      ImportError: a named module does not exist.
    """
    digests = _digests(modules)
    parts = sorted(digests[name] for name in modules)
    parts.extend(f"{name}=={_version(name)}" for name in libraries)
    return digest_text("\n".join(parts))


def reached_modules(modules: Iterable[str]) -> dict[str, Syntax]:
    """``modules`` and all that they import, by name, but for what ``DECIDES_NO_CODE``.

    Only modules of this package and of the packages of ``modules`` are followed.

    Raises:
      ImportError: one of ``modules`` does not exist.
    """
    modules = tuple(modules)
    packages = frozenset({_PACKAGE, *(name.partition(".")[0] for name in modules)})
    for name in modules:
        if _origin(name) is None:
            raise ImportError(f"kernel source module {name!r} was not found")
    found: dict[str, Syntax] = {}
    left = list(modules)
    while left:
        name = left.pop()
        if name not in found and (name in modules or reason_to_leave_out(name) is None):
            found[name] = _syntax_of_module(name, packages)
            left.extend(ref.module for run in found[name].runs for ref in run if ref.module)
    return found


def current_digest(digest: str) -> str:
    """The digest of today of the source that had ``digest``, by the table of aliases; ``digest`` if it has none."""
    aliases = read_aliases()
    seen = set()
    while digest in aliases and digest not in seen:
        seen.add(digest)
        digest = aliases[digest]
    return digest


@functools.cache
def read_aliases() -> Mapping[str, str]:
    """The table of aliases: old digest to new digest."""
    return json.loads(ALIASES.read_text(encoding="utf-8"))


def reason_to_leave_out(module: str) -> str | None:
    """The ``DECIDES_NO_CODE`` of a module, or of a package that it is in; None if it decides code."""
    names = module.split(".")
    for n in range(1, len(names) + 1):
        if reason := _mark(".".join(names[:n])):
            return reason
    return None


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


def _digests(modules: tuple[str, ...]) -> dict[str, str]:
    """The digest of each reached module, with all that it reaches in turn.

    Modules may import one another in circles. So the digests are refined: at first each stands for the module's own
    text, then again and again for the text and the digests of its imports, as often as there are modules.
    """
    reached = reached_modules(modules)
    own = {name: digest_text(syntax.text) for name, syntax in reached.items()}
    digests = own
    for _ in reached:
        digests = {
            name: digest_text("\n".join([own[name], *_filled(syntax.runs, digests)]))
            for name, syntax in reached.items()
        }
    return digests


def _filled(runs: Iterable[tuple[Reference, ...]], digests: Mapping[str, str]) -> Iterator[str]:
    for run in runs:
        yield ",".join(sorted(f"{digests.get(ref.module, '')} {ref.text}" for ref in run))


@functools.cache
def _syntax_of_module(name: str, packages: frozenset[str]) -> Syntax:
    origin = _origin(name)
    assert origin is not None, name
    package = name if origin.name == "__init__.py" else name.rpartition(".")[0]
    return canonical_source(origin.read_text(encoding="utf-8"), package, packages)


@functools.cache
def _origin(name: str) -> Path | None:
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


@functools.cache
def _mark(name: str) -> str | None:
    origin = _origin(name)
    if origin is None:
        return None
    source = origin.read_text(encoding="utf-8")
    found = re.search(rf'^{MARK} = (?:\(\s*)?"(.+)"', source, re.MULTILINE)
    return found and found[1]


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
        return module.partition(".")[0] in self.packages and _origin(module) is not None


@functools.cache
def _field_names(node: type[ast.AST]) -> tuple[str, ...]:
    return tuple(sorted(node._fields))


def _has_docstring(node: ast.AST) -> bool:
    if not isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return False
    return ast.get_docstring(node, clean=False) is not None


def _is_empty_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == ""


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""
