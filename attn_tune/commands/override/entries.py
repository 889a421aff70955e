"""Entries of a file of overrides: the option that names the file, a change of it, and their text and JSON."""

import enum
import os
from collections.abc import Callable
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from attn_tune.commands.shared import options
from attn_tune.schema import UsageError

if TYPE_CHECKING:
    from attn_tune.packs.override_entries import Entry

File = Annotated[
    Path | None,
    options.option(
        ...,
        "--file",
        "PATH",
        "The file. Default: attn-tune/overrides.json in the user's configuration directory, which every lookup of the "
        "user finds.",
    ),
]


class Kind(enum.StrEnum):
    """Choices of ``add``: ``use`` answers with a config, ``never`` forbids configs."""

    USE = "use"
    NEVER = "never"


def change_file(
    file: Path | None, change: "Callable[[tuple[Entry, ...]], tuple[Entry, ...]]"
) -> "tuple[Path, tuple[Entry, ...]]":
    """Change the entries of ``file``, else of the user's own; the path and the entries that it has now.

    Raises:
      UsageError: no file is named, and there is no home directory for the user's own.
    """
    from attn_tune.packs.override_files import change_overrides
    from attn_tune.runtime.overrides.active import user_file

    path = file or user_file(os.environ)
    if not path:
        raise UsageError("there is no home directory (HOME, XDG_CONFIG_HOME); name the file: --file PATH")
    return Path(path), change_overrides(Path(path), change).entries


def line(entry: "Entry") -> str:
    """The id, kind, condition and reason of an entry."""
    kind = Kind.NEVER if entry.never else Kind.USE
    return f"{entry.id} {kind} {entry.condition}" + (f": {entry.reason}" if entry.reason else "")


def as_json(entry: "Entry") -> dict[str, Any]:
    """The facts of an entry, with its id and its file."""
    kind = "never" if entry.never else "use"
    return {"id": entry.id, "entry": kind, **loads(entry.line), "file": entry.origin}
