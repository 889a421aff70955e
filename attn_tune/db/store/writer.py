"""The writer lock: one sweep at a time per database. The system frees it when its process ends, however that ends."""

import fcntl
import os
import socket
import time
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

    def acquire(self) -> None:
        """Take the lock, unless it is held here already.

        Raises:
          StorageError: another process writes; the message names it.
        """
        if self._file is not None:
            return
        file = _lock_path(self._database).open("a+")
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

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._file is not None:
            # A forked child may have the file too, so that closing it would not be enough.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()
            self._file = None


def is_held(database: Path) -> bool:
    """Whether a process writes to ``database`` now."""
    try:
        with _lock_path(database).open() as file:
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


def _lock_path(database: Path) -> Path:
    # It stays: to delete it would let two in.
    return database.with_name(f".{database.name}.lock")
