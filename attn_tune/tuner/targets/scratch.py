"""A folder for what one process writes and reads back, in memory where that can be had."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Self

_PREFIX = "attn-tune-tpu-"
_SHARED_MEMORY = Path("/dev/shm")


class Scratch:
    """A new, empty folder. It goes with ``close``, or, if its process is killed, when another process makes one.

    Its process holds a lock on it, which the system gives back however the process ends.
    """

    def __init__(self, place: Path | None = None):
        """``place``: the folder that it lies in; default: memory, else where temporary files lie."""
        if place is None:
            usual = Path(tempfile.gettempdir())
            place = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else usual
        remove_abandoned(place)
        while True:
            self.path = tempfile.mkdtemp(prefix=_PREFIX, dir=place)
            self._lock = _locked(self.path, wait=True)
            # A file system without locks: then nobody takes it for abandoned either.
            if self._lock is not None or os.path.isdir(self.path):
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Removes the folder. May be called more than once."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_abandoned(place: Path) -> None:
    """Removes the folders in ``place`` whose processes are gone. What belongs to somebody else stays."""
    for folder in place.glob(f"{_PREFIX}*"):
        lock = _locked(str(folder), wait=False)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _locked(folder: str, *, wait: bool) -> int | None:
    """The descriptor that holds the lock; None if somebody else holds it, or has removed the folder meanwhile."""
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
