"""Small files of settings that several processes change, one at a time."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from attn_tune.packs.plain_files import write_whole
from attn_tune.schema.errors import NoDataError, StorageError


@contextlib.contextmanager
def only_writer(target: Path) -> Iterator[None]:
    """Within a ``with`` block nobody else who asks for it changes ``target``; whoever comes meanwhile waits.

    Raises:
      OSError: its folder cannot be written to.
    """
    import fcntl

    # A file of its own, because the target itself is replaced. It stays: to delete it would let two in.
    with open(target.with_name(f".{target.name}.lock"), "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def change_whole[T](
    path: str | os.PathLike[str],
    what: str,
    read: Callable[[Path], list[T]],
    change: Callable[[list[T]], list[T]],
    text: Callable[[list[T]], str],
) -> list[T]:
    """Writes what ``change`` makes of what ``read`` finds at ``path`` (nothing where there is no file); returns it.

    One at a time: who comes while another writes waits, so that nothing is lost.

    Raises:
      As ``read`` and ``change``; StorageError also if it cannot be written.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with only_writer(target):
            after = change(read(target) if os.path.lexists(target) else [])
            write_whole(target, text(after).encode())
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{what} cannot be written: {error.strerror or error}") from None
    return after


class Named(Protocol):
    """What is in such a file, a line each."""

    @property
    def id(self) -> str:
        """A short name of what it says."""
        ...


def without[T: Named](items: Sequence[T], ids: Sequence[str], where: str) -> list[T]:
    """``items`` but for those with these ids.

    Raises:
      NoDataError: an id is none of theirs.
    """
    known = {item.id for item in items}
    for one in ids:
        if one not in known:
            raise NoDataError(
                f"{where} has no {one!r}; it has {', '.join(sorted(known)) or 'none'}"
            )
    return [item for item in items if item.id not in ids]
