"""Where quarantine lists are, and how one is read and changed. Every writing is whole or not at all."""

import os
from collections.abc import Callable, Mapping, Sequence

from attn_tune.packs.plain_files import read_limited
from attn_tune.packs.strict_json import parse_json
from attn_tune.runtime.quarantine import Entry, Quarantine, entries_from_json, list_text
from attn_tune.runtime.whole_files import change_whole
from attn_tune.schema.digest import canonical_json, digest_text
from attn_tune.schema.directories import config_directory, data_directory
from attn_tune.schema.errors import IntegrityError, StorageError

QUARANTINE = "ATTN_TUNE_QUARANTINE"

_NAME = "quarantine.json"


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
    own = [path for path in own if path and os.path.lexists(path)]
    return tuple(dict.fromkeys([*named, *own]))


def read_quarantine(paths: Sequence[str]) -> Quarantine:
    """Reads the lists at ``paths``. Never raises for a bad one: see ``Quarantine.broken``."""
    entries: list[Entry] = []
    said: list[str] = []
    broken = ""
    for path in paths:
        try:
            data = read_limited(path, f"the quarantine list {path}")
            entries += entries_from_json(parse_json(data, path), path, path)
            said.append(digest_text(data.decode("utf-8")))
        except StorageError as error:
            broken = broken or str(error)
            said.append("broken")
        except (UnicodeDecodeError, IntegrityError) as error:
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
    data = read_limited(path, f"the quarantine list {path}")
    return entries_from_json(parse_json(data, str(path)), str(path), str(path))


def change_list(
    path: str | os.PathLike[str], change: Callable[[list[Entry]], list[Entry]]
) -> list[Entry]:
    """Writes what ``change`` makes of the entries at ``path`` (none where there is no file); returns them.

    One at a time: who comes while another writes waits, so that no entry is lost.

    Raises:
      As ``read_list``; StorageError also if it cannot be written.
    """
    return change_whole(path, f"the quarantine list {path}", read_list, change, list_text)
