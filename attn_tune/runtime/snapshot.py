"""The packs in force for the whole process, and what they answered: one immutable thing, swapped whole."""

import os
import threading
from collections.abc import Hashable, Iterator
from typing import Any

from attn_tune.runtime.answer import SourceKind
from attn_tune.runtime.devices import DEVICE_AS
from attn_tune.runtime.packs import Pack
from attn_tune.runtime.shelf import Shelf
from attn_tune.runtime.sources import Source, locations
from attn_tune.schema.digest import digest_json
from attn_tune.schema.signature import Field

# A job asks some hundreds of questions; past this the memo starts anew rather than grow.
MEMO_LIMIT = 65536
MEMO_OVERLAYS = 64


class Memo:
    """Answers by question, bounded. Reading is one dictionary look-up."""

    def __init__(self) -> None:
        self.entries: dict[Hashable, Any] = {}

    def put(self, key: Hashable, value: Any) -> None:
        """Remembers ``value``."""
        if len(self.entries) >= MEMO_LIMIT:
            self.entries = {}
        self.entries[key] = value


class Snapshot:
    """The process's packs. Everything but the memos is fixed when it is made; packs are read on first use."""

    def __init__(self, sources: tuple[Source, ...], device_as: str = ""):
        self.sources = sources
        self.device_as = device_as
        self.memos: dict[tuple[Pack, ...], Memo] = {}

    def memo(self, overlays: tuple[Pack, ...]) -> Memo:
        """The memo for these overlays in force."""
        found = self.memos.get(overlays)
        if found is None:
            if len(self.memos) >= MEMO_OVERLAYS:
                self.memos = {}
            found = self.memos.setdefault(overlays, Memo())
        return found

    @property
    def digest(self) -> str:
        """Names what decides: every pack's digest in order, and the device override. Reads all packs."""
        packs = [source.pack.digest for source in self.sources if source.pack is not None]
        return digest_json([self.device_as, *packs])


def shelves(
    sources: tuple[Source, ...], op: str, direction: str, fields: tuple[Field, ...]
) -> Iterator[tuple[SourceKind, Shelf]]:
    """The readable shelves of ``sources``, in order."""
    for source in sources:
        shelf = source.shelf(op, direction, fields)
        if shelf is not None:
            yield source.kind, shelf


_current: Snapshot | None = None
_lock = threading.Lock()


def current_snapshot() -> Snapshot:
    """The snapshot in force, made from the environment variables on first use."""
    return _current or _first()


def swap_snapshot() -> tuple[Snapshot | None, Snapshot]:
    """Makes a new snapshot from the environment variables and puts it in force; returns (old, new).

    All packs are read before the swap, so that no lookup waits for it.
    """
    global _current
    new = _from_environment()
    new.digest  # noqa: B018 (reads every pack)
    with _lock:
        old, _current = _current, new
    return old, new


def _first() -> Snapshot:
    global _current
    with _lock:
        if _current is None:
            _current = _from_environment()
        return _current


def _from_environment() -> Snapshot:
    found = locations(os.environ)
    sources = [Source(SourceKind.USER, path) for path in found.user]
    sources += [Source(SourceKind.PROJECT, path) for path in found.project]
    sources += [Source(SourceKind.SHIPPED, path) for path in found.shipped]
    return Snapshot(tuple(sources), os.environ.get(DEVICE_AS, ""))
