"""Where quarantine lists are, and how one is read and changed. Every writing is whole or not at all."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from attn_tune.runtime.directories import config_directory, data_directory
from attn_tune.runtime.quarantine import Entry, Quarantine, entries_from_json, list_text
from attn_tune.runtime.strict_json import parse_json
from attn_tune.runtime.whole_files import only_writer, write_whole
from attn_tune.schema.digest import canonical_json, digest_text
from attn_tune.schema.errors import IntegrityError, NoDataError, StorageError

QUARANTINE = "ATTN_TUNE_QUARANTINE"

_NAME = "quarantine.json"
_MAX_BYTES = 16 * 1024 * 1024


def user_list(environ: Mapping[str, str]) -> str:
    """``quarantine.json`` in the user's configuration directory, which lookups find without being told; ``""`` without
    a home."""
    folder = config_directory(environ)
    return os.path.join(folder, _NAME) if folder else ""


def quarantine_paths(environ: Mapping[str, str]) -> tuple[str, ...]:
    """``ATTN_TUNE_QUARANTINE`` (files), then ``quarantine.json`` in the user's configuration and data directories,
    where it is there."""
    named = [path for path in environ.get(QUARANTINE, "").split(os.pathsep) if path]
    data = data_directory(environ)
    own = [user_list(environ), os.path.join(data, _NAME) if data else ""]
    # A link that leads nowhere is there: it is a list that cannot be read.
    return (*named, *(path for path in own if path and os.path.lexists(path)))


def read_quarantine(paths: Sequence[str]) -> Quarantine:
    """Reads the lists at ``paths``. Never raises for a bad one: see ``Quarantine.broken``."""
    entries: list[Entry] = []
    said: list[str] = []
    broken = ""
    for path in paths:
        try:
            data = _read(path)
            entries += entries_from_json(parse_json(data, path), path, path)
            said.append(digest_text(data.decode("utf-8")))
        except (OSError, UnicodeDecodeError, IntegrityError) as error:
            broken = broken or f"the quarantine list {path} cannot be read: {error}"
            said.append("broken")
    return Quarantine(tuple(entries), broken, digest_text(canonical_json(said)) if said else "")


def quarantine_in_force(environ: Mapping[str, str]) -> Quarantine:
    """The lists in files that a job of this user would go by now."""
    return read_quarantine(quarantine_paths(environ))


def read_list(path: str | os.PathLike[str]) -> list[Entry]:
    """The entries of the one list at ``path``.

    Raises:
      StorageError: it cannot be read.
      IntegrityError: it is no quarantine list; the sentence says what is wrong.
    """
    try:
        data = _read(path)
    except OSError as error:
        raise StorageError(
            f"the quarantine list {path} cannot be read: {error.strerror or error}"
        ) from None
    return entries_from_json(parse_json(data, str(path)), str(path), str(path))


def change_list(
    path: str | os.PathLike[str], change: Callable[[list[Entry]], list[Entry]]
) -> list[Entry]:
    """Writes what ``change`` makes of the entries at ``path`` (none where there is no file); returns them.

    One at a time: who comes while another writes waits, so that no entry is lost.

    Raises:
      As ``read_list``; StorageError also if it cannot be written.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with only_writer(target):
            before = read_list(target) if os.path.lexists(target) else []
            after = change(before)
            write_whole(target, list_text(after).encode())
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(
            f"the quarantine list {path} cannot be written: {error.strerror or error}"
        ) from None
    return after


def without(entries: Sequence[Entry], ids: Sequence[str], path: object) -> list[Entry]:
    """``entries`` but for those with these ids.

    Raises:
      NoDataError: an id is none of theirs.
    """
    known = {entry.id for entry in entries}
    for one in ids:
        if one not in known:
            raise NoDataError(
                f"the quarantine list {path} has no entry {one!r}; it has {', '.join(sorted(known)) or 'none'}"
            )
    return [entry for entry in entries if entry.id not in ids]


def _read(path: str | os.PathLike[str]) -> bytes:
    with open(path, "rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise IntegrityError(f"{path} is larger than {_MAX_BYTES} bytes")
    return data
