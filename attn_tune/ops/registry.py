"""The registry of ops: folders of this package, and the entry points ``attn_tune.ops``. It loads one op at a time.

There is no second list. A folder of ``FOLDERS`` with an ``op.py`` that defines ``OP`` is an op of the folder's name. An
entry point names an ``Op``, and is called like it, so that names are known without importing anything.
"""

import contextlib
import functools
import importlib
import importlib.util
from importlib.metadata import EntryPoint
from pathlib import Path

from attn_tune.ops.contract import Op
from attn_tune.ops.installed import BrokenPackage, entry_points, load_entry_points
from attn_tune.schema.errors import UsageError, unknown_name, warn

FOLDERS = "attn_tune.ops"
GROUP = "attn_tune.ops"

_broken: dict[str, BrokenPackage] = {}


@functools.cache
def op_names() -> tuple[str, ...]:
    """The names of all ops, sorted. Imports none; a broken installed one is among them."""
    return tuple(sorted({*_folders(), *_installed()}))


@functools.cache
def ops() -> dict[str, Op]:
    """Every op by name; imports all of them. Broken installed ones are left out."""
    return {name: op for name in op_names() if (op := find_op(name)) is not None}


def get_op(name: str) -> Op:
    """The op called ``name``; imports this op alone.

    Raises:
      UsageError: there is none; near names are suggested. Or its package is broken.
    """
    op = find_op(name)
    if op is not None:
        return op
    if name in _broken:
        raise UsageError(f"op {name!r} cannot be used: {_broken[name]}")
    raise unknown_name("op", name, op_names())


def directions_of(signature: str) -> tuple[str, ...]:
    """The directions that a problem has; all of its op's for a text that this version of the op cannot read.

    Raises:
      UsageError: as ``get_op``.
    """
    op = get_op(signature.partition("/")[0])
    try:
        return op.directions_of(op.from_signature(op.parse_signature(signature)))
    except UsageError:
        return op.directions


def broken_ops() -> tuple[BrokenPackage, ...]:
    """The installed packages whose ops cannot be used; imports all ops."""
    ops()
    return tuple(_broken.values())


def clear() -> None:
    """Forgets everything, so that packages installed since are found."""
    for function in (op_names, ops, find_op, _folders, _installed):
        function.cache_clear()
    _broken.clear()


@functools.cache
def find_op(name: str) -> Op | None:
    """The op called ``name``; None if there is none or, with one warning, if its package is broken."""
    if name in _folders():
        return importlib.import_module(f"{FOLDERS}.{name}.op").OP
    if name not in _installed():
        return None
    (found,) = load_entry_points([_installed()[name]], _read, "ops")
    if isinstance(found, BrokenPackage):
        _broken[name] = found
        warn(f"{found}; `attn-tune doctor` checks it again")
        return None
    return found


def _read(point: EntryPoint) -> tuple[Op]:
    op = point.load()
    if not isinstance(op, Op):
        raise UsageError(f"it offers a {type(op).__name__}, not an Op")
    if op.name != point.name:
        raise UsageError(f"its entry point must be called like the op, {op.name!r}")
    return (op,)


@functools.cache
def _folders() -> tuple[str, ...]:
    spec = importlib.util.find_spec(FOLDERS)
    places = spec.submodule_search_locations if spec else None
    found: list[str] = []
    for place in map(Path, places or ()):
        # Another error is raised and not kept, unlike with ``glob``, which finds no op without free file descriptors.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found += [path.name for path in place.iterdir() if (path / "op.py").is_file()]
    return tuple(sorted(found))


@functools.cache
def _installed() -> dict[str, EntryPoint]:
    # An op of this package cannot be replaced, and of two installed ones the first is used.
    found: dict[str, EntryPoint] = {}
    for point in entry_points(GROUP):
        if point.name not in _folders():
            found.setdefault(point.name, point)
    return found
