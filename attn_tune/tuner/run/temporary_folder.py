"""A folder for what one process writes and reads back. The next process removes it if its own was killed."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Self

from attn_tune.schema.errors import StorageError

_SHARED_MEMORY = Path("/dev/shm")


class TemporaryFolder:
    """A new, empty folder. It goes with ``close``, or, if its process is killed, when another process makes one.

    Its process holds a lock on it, which the system gives back however the process ends.
    """

    def __init__(self, prefix: str, place: Path | None = None):
        """``prefix`` says what it is for, and begins its name. ``place`` is the folder that it lies in, by default that
        of temporary files.

        Raises:
          StorageError: no folder can be made there.
        """
        try:
            place = place or Path(tempfile.gettempdir())
            self._make(prefix, place)
        except OSError as error:
            reason = error.strerror or error
            raise StorageError(
                f"no temporary folder can be made: {reason}; name one that can be written with TMPDIR"
            ) from None

    def _make(self, prefix: str, place: Path) -> None:
        remove_abandoned(prefix, place)
        while True:
            self.path = tempfile.mkdtemp(prefix=prefix, dir=place)
            self._lock = _locked(self.path, wait=True)
            # A file system without locks: then no process takes it for abandoned either.
            if self._lock is not None or os.path.isdir(self.path):
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder. May be called more than once."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def in_memory() -> Path | None:
    """The place whose files lie in memory; None where there is none."""
    return _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None


def remove_abandoned(prefix: str, place: Path) -> None:
    """Remove the folders of this prefix in ``place`` whose processes are gone. Those of other users stay."""
    for folder in place.glob(f"{prefix}*"):
        lock = _locked(str(folder), wait=False)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _locked(folder: str, *, wait: bool) -> int | None:
    """The descriptor that holds the lock; None if another process holds it, or has removed the folder meanwhile."""
    import fcntl

    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        # Between making a folder and locking it another process may have taken it for an abandoned one.
        if os.path.samestat(os.fstat(lock), os.stat(folder)):
            return lock
    os.close(lock)
    return None
