"""Sources of packs, in the order they are asked; read on first use, a broken one is ignored with one warning."""

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from attn_tune import packs
from attn_tune.packs.archive import is_pack
from attn_tune.packs.reader import Pack, open_pack
from attn_tune.packs.wheel import installed_packs
from attn_tune.runtime.active.row_index import RowIndex
from attn_tune.runtime.locks import Lock
from attn_tune.runtime.lookup.answer import SourceKind
from attn_tune.schema.directories import data_directory
from attn_tune.schema.errors import IntegrityError, StorageError, UsageError
from attn_tune.schema.logs import log
from attn_tune.schema.signature import Field

USER_PACKS = "ATTN_TUNE_PACKS"
SHIPPED = Path(packs.__file__).resolve().parent / "shipped"

_lock = Lock()


class Source:
    """One place a pack may be. ``pack`` is None when it is broken; ``error`` then says why.

    ``own`` marks a pack that was found within attn-tune itself. It is as good as its code and needs no signature. A
    path that somebody names is never ``own``, wherever it leads.
    """

    def __init__(self, kind: SourceKind, path: str = "", pack: Pack | None = None, *, own: bool = False):
        self.kind = kind
        self.path = path
        self.own = own
        self._pack = pack
        self._error: str | None = None
        self._indexes: dict[tuple[str, str], RowIndex] = {}

    def read(self) -> None:
        """Reads the pack unless that was tried before. Never raises for a bad pack: a job must not die of one."""
        if self._pack is not None or self._error is not None:
            return
        with _lock:
            if self._pack is None and self._error is None:
                try:
                    self._pack = open_pack(self.path, signed=False if self.own else None)
                except (IntegrityError, StorageError, UsageError) as error:
                    self._error = str(error)
                    log.warning("ignored: %s", error)

    @property
    def pack(self) -> Pack | None:
        """The pack, read on first use."""
        self.read()
        return self._pack

    @property
    def error(self) -> str | None:
        """The reason why the pack is ignored."""
        self.read()
        return self._error

    @property
    def is_whole_again(self) -> bool:
        """Whether a file that a lookup could not read can be read now."""
        return any(index.is_whole_again for index in list(self._indexes.values()))

    def row_index(self, op: str, direction: str, fields: tuple[Field, ...]) -> RowIndex | None:
        """The rows of one op and direction, arranged on first use; None for a broken pack."""
        pack = self.pack
        if pack is None:
            return None
        key = (op, direction)
        found = self._indexes.get(key)
        if found is None or found.fields is not fields:
            # Two threads may build the same one; both are equal and either may stay.
            found = self._indexes[key] = RowIndex(pack, op, direction, fields)
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Locations:
    """The paths to look at. Nothing is ever searched for in the working directory.

    ``wheels`` are packs that were installed as wheels, with their distributions; ``own`` those within attn-tune itself.

    Attributes:
      user: packs that ``ATTN_TUNE_PACKS`` names, then those in the data directory.
    """

    user: tuple[str, ...] = ()
    wheels: Mapping[str, str] = field(default_factory=dict[str, str])
    own: tuple[str, ...] = ()


def locations(environ: Mapping[str, str]) -> Locations:
    """Locations of packs: ``ATTN_TUNE_PACKS`` (packs, or folders of packs), then ``attn-tune/packs`` under
    ``XDG_DATA_HOME``; packs installed as wheels; and what ships in the package."""
    user = [_absolute(p) for p in environ.get(USER_PACKS, "").split(os.pathsep) if p]
    found = [path for entry in user for path in _packs_in(Path(entry), named=True)]
    if data := data_directory(environ):
        found += _packs_in(Path(data) / "packs", named=False)
    return Locations(
        user=tuple(found),
        wheels=installed_packs(),
        own=tuple(_packs_in(SHIPPED, named=False)),
    )


def _absolute(path: str) -> str:
    """``path`` from the root: packs are read on first use, and the job may be in another folder by then."""
    try:
        return os.path.join(os.getcwd(), path)
    except OSError:  # the folder that the job is in was removed
        return path


def _packs_in(path: Path, *, named: bool) -> list[str]:
    """The packs at or in ``path``, by name. A path that someone named is kept even if it is none: that is an error.

    So is a folder that may not be read: there may be packs in it. A name that begins with a dot is that of a draft,
    which a writer has not put in its place yet, or never will.
    """
    try:
        if is_pack(path):
            return [str(path)]
        inside = sorted(child for child in path.iterdir() if is_pack(child) and not child.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return [str(path)] if named else []
    except OSError:
        return [str(path)]
    return [str(child) for child in inside] or ([str(path)] if named else [])


@functools.lru_cache(maxsize=64)
def overlay_source(pack: Pack) -> Source:
    """The source of a pack that is already in memory."""
    return Source(SourceKind.OVERLAY, pack.path, pack)
