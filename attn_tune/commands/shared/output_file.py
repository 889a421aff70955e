"""Files that a command writes: whole, and never over another file unless asked, into a pack or over a database."""

from pathlib import Path

from attn_tune.packs.archive import is_pack
from attn_tune.packs.plain_files import write_whole
from attn_tune.packs.writer import check_beside_packs
from attn_tune.schema import StorageError

_SQLITE = b"SQLite format 3\0"


def check_free(path: Path, *, overwrite: bool | None = None) -> None:
    """Refuse a path that is taken, or that lies within a pack, which another file would break.

    A pack or a database is not overwritten, asked or not. ``overwrite`` is None for a command that has no such option.

    Raises:
      StorageError: it is one.
    """
    # Links are followed: one may lead into a pack.
    check_beside_packs(path, follow_links=True)
    if path.exists() and not overwrite:
        more = "" if overwrite is None else ", or replace it with --overwrite"
        raise StorageError(f"{path} exists; choose another path{more}")
    if is_pack(path):
        raise StorageError(f"{path} is a pack, so it is not overwritten")
    if path.is_file() and _is_database(path):
        raise StorageError(f"{path} is a database, so it is not overwritten")


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, whose folder is made if need be.

    Raises:
      StorageError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from None
