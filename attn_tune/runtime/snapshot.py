"""What the whole process decides by: packs, pins, quarantine and so on. One immutable thing, swapped whole."""

import os
from collections.abc import Iterator

from attn_tune.runtime.answer import SourceKind
from attn_tune.runtime.determinism import Determinism, determinism_of
from attn_tune.runtime.devices import DEVICE_AS
from attn_tune.runtime.ledger import Ledger
from attn_tune.runtime.lockfile import LOCKFILE, Lockfile, read_lockfile
from attn_tune.runtime.locks import Lock
from attn_tune.runtime.pin_files import NO_PINS, Pins, pins_in_force
from attn_tune.runtime.quarantine import NONE, Quarantine
from attn_tune.runtime.quarantine_files import quarantine_in_force
from attn_tune.runtime.shelf import Shelf
from attn_tune.runtime.sources import Source, locations
from attn_tune.runtime.unproven import takes_unproven
from attn_tune.schema.digest import digest_json
from attn_tune.schema.signature import Field


class Snapshot:
    """Fixed when it is made, but for the ledger of what it answered; packs are read on first use."""

    def __init__(
        self,
        sources: tuple[Source, ...],
        device_as: str = "",
        quarantine: Quarantine = NONE,
        lockfile: Lockfile | None = None,
        determinism: Determinism = Determinism.USUAL,
        pins: Pins = NO_PINS,
        unproven: bool = False,
    ):
        self.sources = sources
        self.device_as = device_as
        self.quarantine = quarantine
        self.lockfile = lockfile
        self.determinism = determinism
        self.pins = pins
        self.unproven = unproven
        self.ledger = Ledger()

    @property
    def digest(self) -> str:
        """Names what decides: packs in order, device override, quarantine, lockfile, pins, determinism, unproven rows.

        Reads all packs.
        """
        packs = [source.pack.digest for source in self.sources if source.pack is not None]
        lock = self.lockfile.digest if self.lockfile else ""
        said = [self.device_as, self.quarantine.digest, lock, self.pins.digest]
        return digest_json([*said, str(self.determinism), self.unproven, *packs])


def shelves(
    sources: tuple[Source, ...], op: str, direction: str, fields: tuple[Field, ...]
) -> Iterator[tuple[SourceKind, Shelf]]:
    """The readable shelves of ``sources``, in order."""
    for source in sources:
        shelf = source.shelf(op, direction, fields)
        if shelf is not None:
            yield source.kind, shelf


_current: Snapshot | None = None
_lock = Lock()
_lockfile_path: str | None = None


def current_snapshot() -> Snapshot:
    """The active snapshot, made from the environment variables on first use.

    Raises:
      StorageError, IntegrityError: the lockfile that the job must run with cannot be used.
      UsageError: ``ATTN_TUNE_DETERMINISTIC`` or ``ATTN_TUNE_UNPROVEN`` has a value that it cannot have.
    """
    return _current or _first()


def swap_snapshot() -> tuple[Snapshot | None, Snapshot]:
    """Makes a new snapshot from the environment variables; puts it in force if it decides otherwise; (old, new).

    All packs are read before the swap, so that no lookup waits for it.
    """
    global _current
    new = _from_environment()
    digest = new.digest
    with _lock:
        old = _current
        if old is not None and old.digest == digest:
            return old, old
        _current = new
    return old, new


def set_lockfile(path: str | None) -> str | None:
    """The path that snapshots made from now on take instead of ``ATTN_TUNE_LOCKFILE``; returns the one before."""
    global _lockfile_path
    before, _lockfile_path = _lockfile_path, path
    return before


def _first() -> Snapshot:
    global _current
    with _lock:
        if _current is None:
            _current = _from_environment()
        return _current


def _from_environment() -> Snapshot:
    found = locations(os.environ)
    sources = [Source(SourceKind.USER, path) for path in found.user]
    sources += [Source(SourceKind.SHIPPED, path) for path in found.wheels]
    sources += [Source(SourceKind.SHIPPED, path, own=True) for path in found.own]
    lockfile = os.environ.get(LOCKFILE, "") if _lockfile_path is None else _lockfile_path
    return Snapshot(
        tuple(sources),
        os.environ.get(DEVICE_AS, ""),
        quarantine_in_force(os.environ),
        read_lockfile(lockfile) if lockfile else None,
        determinism_of(os.environ),
        pins_in_force(os.environ),
        takes_unproven(os.environ),
    )
