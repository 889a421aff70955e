"""The digest of a kernel's source: what its modules and all that they import say, whatever they are called.

The digest is made from canonical syntax. Comments, docstrings and formatting do not count, nor does the Python that
computes it. Names of files and packages do not count either: an import is the imported module's own digest. A module
can therefore move without making a stored row stale. Where names inside modules change and programs do not,
``source_aliases.json`` maps the old digest to the new one; ``attn-tune pack restamp`` proves it.

A module whose change leaves the generated code alone says so in a constant, ``DECIDES_NO_CODE = "reason"``. It and what
it imports are left out. In the ``__init__.py`` of a package the constant speaks for every module below.

Parsing a kernel's modules takes longer than the rest of a lookup. ``source_table.json`` holds what parsing the modules
of this package yields; ``tools/source_table.py`` writes it. An entry counts for a file of exactly the bytes that were
parsed, any other file is parsed: a stale table costs time and changes no digest.
"""

import functools
import hashlib
import importlib.metadata
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attn_tune.kernels.canonical_source import Reference, canonical_source, file_of_module
from attn_tune.schema.digest import digest_text

MARK = "DECIDES_NO_CODE"
ALIASES = Path(__file__).with_name("source_aliases.json")
TABLE = Path(__file__).with_name("source_table.json")
_PACKAGE = __name__.partition(".")[0]


@dataclass(frozen=True)
class Module:
    """The part of a module that the digests of kernels take in.

    Attributes:
      digest: the digest of its canonical text, without its imports.
      runs: its references, those of neighbouring imports together.
    """

    digest: str
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
    parts.extend(f"{name}=={library_version(name)}" for name in libraries)
    return digest_text("\n".join(parts))


def reached_modules(modules: Iterable[str]) -> dict[str, Module]:
    """``modules`` and all that they import, by name, but for what ``DECIDES_NO_CODE``.

    Only modules of this package and of the packages of ``modules`` are followed.

    Raises:
      ImportError: one of ``modules`` does not exist.
    """
    modules = tuple(modules)
    packages = frozenset({_PACKAGE, *(name.partition(".")[0] for name in modules)})
    for name in modules:
        if file_of_module(name) is None:
            raise ImportError(f"kernel source module {name!r} was not found")
    found: dict[str, Module] = {}
    left = list(modules)
    while left:
        name = left.pop()
        if name not in found and (name in modules or reason_to_leave_out(name) is None):
            found[name] = _read_module(name, packages)
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
    """The table of aliases: old digest to new digest; empty where the file is missing or damaged."""
    return _read_json(ALIASES)


@functools.cache
def read_table() -> Mapping[str, Mapping[str, Any]]:
    """The table of parsed modules, by name; empty where the file is missing or damaged: then modules are parsed."""
    return _read_json(TABLE)


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def table_entry(name: str) -> dict[str, Any]:
    """The entry of one of this package's modules, made from its source."""
    file = file_of_module(name)
    assert file is not None, name
    parsed = _parse(name, file, frozenset({_PACKAGE}))
    runs = [[[ref.module, ref.text] for ref in run] for run in parsed.runs]
    return {"sha256": _sha256(file), "digest": parsed.digest, "runs": runs}


def reason_to_leave_out(module: str) -> str | None:
    """The ``DECIDES_NO_CODE`` of a module, or of a package that it is in; None if it decides code."""
    names = module.split(".")
    for n in range(1, len(names) + 1):
        if reason := _mark(".".join(names[:n])):
            return reason
    return None


def _digests(modules: tuple[str, ...]) -> dict[str, str]:
    """The digest of each reached module, with all that it reaches in turn.

    Modules may import one another in circles. So the digests are refined: at first each stands for the module's own
    text, then again and again for the text and the digests of its imports, as often as there are modules. Without a
    circle they stop changing earlier.
    """
    reached = reached_modules(modules)
    digests = {name: module.digest for name, module in reached.items()}
    for _ in reached:
        before = digests
        digests = {
            name: digest_text("\n".join([module.digest, *_filled(module.runs, before)]))
            for name, module in reached.items()
        }
        if digests == before:
            break
    return digests


def _filled(runs: Iterable[tuple[Reference, ...]], digests: Mapping[str, str]) -> Iterator[str]:
    for run in runs:
        yield ",".join(sorted(f"{digests.get(ref.module, '')} {ref.text}" for ref in run))


@functools.cache
def _read_module(name: str, packages: frozenset[str]) -> Module:
    """A module by the table; parsed where its file or a module that it refers to is another one than in the table."""
    file = file_of_module(name)
    assert file is not None, name
    # Names that are a kernel's own package's are references too, which the table does not know.
    entry = read_table().get(name) if packages == {_PACKAGE} else None
    match entry:
        case {"sha256": sha256, "digest": str(digest), "runs": list(listed)} if sha256 == _sha256(file):
            runs = tuple(tuple(Reference(*ref) for ref in run) for run in listed)
            if all(file_of_module(ref.module) for run in runs for ref in run if ref.module):
                return Module(digest, runs)
        case _:
            pass
    return _parse(name, file, packages)


def _parse(name: str, file: Path, packages: frozenset[str]) -> Module:
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    syntax = canonical_source(file.read_text(encoding="utf-8"), package, packages)
    return Module(digest_text(syntax.text), syntax.runs)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@functools.cache
def _mark(name: str) -> str | None:
    origin = file_of_module(name)
    if origin is None:
        return None
    source = origin.read_text(encoding="utf-8")
    found = re.search(rf'^{MARK} = (?:\(\s*)?"(.+)"', source, re.MULTILINE)
    return found and found[1]


def library_version(library: str) -> str:
    """The version of an installed distribution, ``""`` where it is not installed."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""
