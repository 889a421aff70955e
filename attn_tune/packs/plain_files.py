"""Plain files: read within bounds, written whole or not at all."""

import contextlib
import os
import stat
import tempfile
from collections.abc import Generator
from pathlib import Path

from attn_tune.schema.errors import IntegrityError, StorageError

_MAX_BYTES = 16 * 1024 * 1024
_KINDS = {
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "FIFO",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
    stat.S_IFSOCK: "socket",
}

# Of Linux: names relative to the working directory, and the flag that exchanges them.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def exchange(one: Path, other: Path) -> None:
    """Exchange the names of two files or folders in one step, which ``os.replace`` cannot with folders.

    Raises:
      OSError: the system or the file system cannot; nothing is changed.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    rename = getattr(libc, "renameat2", None)
    if rename is None:
        raise OSError("the system has no renameat2")
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def status_of_plain(path: str | os.PathLike[str], what: str) -> os.stat_result | None:
    """The status of the regular file at ``path``, links followed; None where nothing is. ``what`` names it in errors.

    To be asked before a file is opened or replaced: a FIFO blocks who opens it, and the size
    of a device node is 0.

    Raises:
      StorageError: it is a folder, a FIFO, a device or a socket; or no file can have such a name here.
      OSError: it cannot be looked at.
    """
    try:
        info = os.stat(path)
    except FileNotFoundError:
        return None
    except ValueError as error:  # the system's encoding has no such name, or it has a null byte
        raise StorageError(
            f"{what}: no file can have this name here: {error}; choose another, or a locale of UTF-8 (LC_ALL=C.UTF-8)"
        ) from None
    if not stat.S_ISREG(info.st_mode):
        kind = _KINDS.get(stat.S_IFMT(info.st_mode), "special file")
        raise StorageError(f"{what} is a {kind}, not a regular file; choose another path")
    return info


def write_whole(target: Path, data: bytes) -> None:
    """Puts ``data`` at ``target``, readable by all, over what is there; durably, and never half of it.

    Raises:
      StorageError: ``target`` is a folder, a FIFO, a device or a socket.
      OSError: it cannot be written.
    """
    status_of_plain(target, str(target))
    descriptor, aside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o644)
        os.replace(aside, target)
    except BaseException:
        os.unlink(aside)
        raise


def read_limited(path: str | os.PathLike[str], what: str, limit: int = _MAX_BYTES) -> bytes:
    """The bytes at ``path``, at most ``limit`` of them; ``what`` names the file in errors.

    Raises:
      StorageError: it is no regular file, or cannot be read.
      IntegrityError: it is larger than any such file.
    """
    try:
        status_of_plain(path, what)
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{what} cannot be read: {error.strerror or error}") from None
    if len(data) > limit:
        raise IntegrityError(f"{what} cannot be read: it is larger than {limit} bytes")
    return data


@contextlib.contextmanager
def only_writer(target: Path) -> Generator[None]:
    """Lock ``target`` for a ``with`` block: other processes that ask for it wait.

    Raises:
      OSError: its folder cannot be written to.
    """
    import fcntl

    # A file of its own, because the target itself is replaced. It stays: to delete it would let two in.
    with open(target.with_name(f".{target.name}.lock"), "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
