"""The lab database of a command."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from attn_tune.schema import StorageError

if TYPE_CHECKING:
    from attn_tune.db import Database


@contextlib.contextmanager
def open_lab(path: Path, *, create: bool = False, existing: bool = False) -> "Iterator[Database]":
    """Open the database at ``path`` to read, or to write with ``existing`` or ``create``, which makes it."""
    from attn_tune.db import Database

    if create:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make the folder of {path}: {error.strerror}") from None
    with Database.open(path, create=create, read_only=not (create or existing)) as database:
        yield database
