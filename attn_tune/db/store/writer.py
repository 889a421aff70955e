"""The writer lock: one sweep at a time per database. The system frees it when its process ends, however that ends."""

import fcntl
import os
import socket
import time
import weakref
from pathlib import Path
from typing import IO

from attn_tune.schema import StorageError

_TRIES = 5
_PAUSE_S = 0.01


class WriterLock:
    """The lock of one open database, from its first run's begin to its last one's end: on a file beside it."""

    def __init__(self, database: Path):
        self._database = database
        self._file: IO[str] | None = None

    def forget(self) -> None:
        """Close the file of a forked child, which would else keep the lock when its parent is gone."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def acquire(self) -> None:
        """Take the lock, unless it is held here already.

        Raises:
          StorageError: another process writes; the message names it.
        """
        if self._file is not None:
            return
        file = _open_lock(self._database)
        if not _lock(file, fcntl.LOCK_EX):
            file.seek(0)
            holder = file.read() or "another process"
            file.close()
            raise StorageError(
                f"{self._database} is being written by {holder}; wait for it, stop it, or use another database"
            )
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        self._file = file
        _taken.add(self)

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._file is not None:
            # A forked child may have the file too, so that closing it would not be enough.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()
            self._file = None


# The locks that this process took. One hook for all: what is registered stays for good.
_taken: weakref.WeakSet[WriterLock] = weakref.WeakSet()


def _forget_taken() -> None:
    for lock in tuple(_taken):
        lock.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_taken)


def is_held(database: Path) -> bool:
    """Whether a process writes to ``database`` now."""
    try:
        with _lock_path(database).open(errors="replace") as file:
            return not _lock(file, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False


def _lock(file: IO[str], kind: int) -> bool:
    """Lock ``file`` if no process writes; tried more than once, for others may be asking the same at the moment."""
    for _ in range(_TRIES):
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(_PAUSE_S)
    return False


def _open_lock(database: Path) -> IO[str]:
    """Open the lock file of ``database``, or make it; OSError where a link is in its place, which is not followed."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.fdopen(os.open(_lock_path(database), flags, 0o666), "a+", errors="replace")


def _lock_path(database: Path) -> Path:
    # A database with two names, by a symbolic link, has one lock. The file stays: to delete it would let two in.
    real = database.resolve()
    return real.with_name(f".{real.name}.lock")
