"""A peer of the race: what auto took in an earlier version of this project, in the same process as today's."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

_PACKAGE = "attn_tune"
# Imported once a folder: JAX refuses to register the classes of a module a second time.
_loaded: dict[Path, dict[str, ModuleType]] = {}


def not_a_tree(folder: Path) -> str | None:
    """The reason that no earlier version can be imported from ``folder``, or None."""
    if (folder / _PACKAGE / "__init__.py").is_file():
        return None
    return f"{folder} has no package {_PACKAGE}; git archive COMMIT {_PACKAGE} | tar x -C {folder} puts one there"


@contextlib.contextmanager
def imports_from(folder: Path) -> Iterator[None]:
    """A context in which ``import attn_tune`` finds the package in ``folder``; no other thread may import then.

    Calls that were compiled within it run outside it too: nothing is imported for them any more.

    Raises:
      ValueError: there is no such package.
    """
    if reason := not_a_tree(folder):
        raise ValueError(reason)
    mine = _taken_out()
    sys.modules.update(_loaded.get(folder, {}))
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        _loaded[folder] = _taken_out()
        sys.modules.update(mine)


def _taken_out() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] == _PACKAGE]
    return {name: sys.modules.pop(name) for name in names}
