"""Settings of the process: packs, overrides and so on. One immutable object, swapped whole."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from attn_tune.devices.identity import DEVICE_AS
from attn_tune.packs.override_files import OverridesFile
from attn_tune.runtime.active.row_index import RowIndex
from attn_tune.runtime.active.sources import Source, locations
from attn_tune.runtime.answer_log import AnswerLog
from attn_tune.runtime.determinism import Determinism, determinism_of
from attn_tune.runtime.locks import Lock
from attn_tune.runtime.lookup.answer import SourceKind
from attn_tune.runtime.overrides.active import files_in_force
from attn_tune.runtime.unproven import takes_unproven
from attn_tune.runtime.variables import warn_of_unknown
from attn_tune.schema.digest import digest_json
from attn_tune.schema.signature import Field


@dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """All that the whole process decides by, fixed when it is made; packs are read on first use.

    Attributes:
      sources: places where packs are looked for, in order.
      device_as: the device that decisions are looked up for, ``""`` for the one that is here.
      overrides: active files of overrides, in order.
      determinism: what the job thinks of kernels whose bits may differ from run to run.
      unproven: whether rows answer whose config ran no feature problem.
      log: the answers that were given under these settings.
    """

    sources: tuple[Source, ...] = ()
    device_as: str = ""
    overrides: tuple[OverridesFile, ...] = ()
    determinism: Determinism = Determinism.USUAL
    unproven: bool = False
    log: AnswerLog = field(default_factory=AnswerLog)

    @property
    def digest(self) -> str:
        """Names all that decides: packs in order, device override, overrides, determinism, use of unproven rows.

        Reads all packs.
        """
        packs = [source.pack.digest for source in self.sources if source.pack is not None]
        files = [file.digest for file in self.overrides]
        return digest_json([self.device_as, files, str(self.determinism), self.unproven, *packs])


def row_indexes(
    sources: tuple[Source, ...], op: str, direction: str, fields: tuple[Field, ...]
) -> Iterator[tuple[SourceKind, RowIndex]]:
    """The readable row indexes of ``sources``, in order."""
    for source in sources:
        index = source.row_index(op, direction, fields)
        if index is not None:
            yield source.kind, index


_current: Settings | None = None
_lock = Lock()


def current_settings() -> Settings:
    """The active settings, made from the environment variables on first use.

    Raises:
      StorageError, IntegrityError: a file of overrides that the environment names cannot be read.
      UsageError: ``ATTN_TUNE_DETERMINISTIC`` or ``ATTN_TUNE_UNPROVEN`` has a value that it cannot have.
    """
    global _current
    if _current is None:
        with _lock:
            _current = _current or _from_environment()
    return _current


def swap_settings() -> tuple[Settings | None, Settings]:
    """Make settings from the environment variables again; activate them if they decide otherwise; (old, new).

    So they do, with equal packs, where a file that could not be read can be now. All packs are read before the swap, so
    that no lookup waits for it.
    """
    global _current
    new = _from_environment()
    digest = new.digest
    with _lock:
        old = _current
        if old and old.digest == digest and not any(source.is_whole_again for source in old.sources):
            return old, old
        _current = new
    return old, new


def _from_environment() -> Settings:
    warn_of_unknown(os.environ)
    found = locations(os.environ)
    sources = [Source(SourceKind.USER, path) for path in found.user]
    sources += [Source(SourceKind.WHEEL, path) for path in found.wheels]
    sources += [Source(SourceKind.SHIPPED, path, own=True) for path in found.own]
    return Settings(
        tuple(sources),
        os.environ.get(DEVICE_AS, ""),
        files_in_force(os.environ),
        determinism_of(os.environ),
        takes_unproven(os.environ),
    )
