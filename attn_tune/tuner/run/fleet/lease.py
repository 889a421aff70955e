"""Leases: one sweep at a time measures on one device of this host. A lease ends with its process, however that ends."""

import contextlib
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from attn_tune.schema.errors import StorageError
from attn_tune.schema.words import command_words
from attn_tune.tuner.run.executor import Interrupted

_POLL_S = 0.5
_MOST_TEXT = 400


def lease_folder() -> Path:
    """The folder of leases of all users and sessions of this host.

    Not in ``$XDG_RUNTIME_DIR``: each user has another one, and jobs of a batch system have none.
    """
    shared = Path("/tmp") if Path("/tmp").is_dir() else Path(tempfile.gettempdir())
    return shared / "attn-tune-leases"


@dataclass
class Lease:
    """The lease of the device called ``key``. It is held from ``take`` to ``release``.

    Attributes:
      folder: the folder of the lock files.
    """

    key: str
    folder: Path
    _file: int | None = None

    @property
    def path(self) -> Path:
        """The file that is locked; it stays behind."""
        return self.folder / f"{self.key}.lock"

    def take(self) -> str:
        """Take the lease if it is free: ``""``, else the text that its holder wrote into the file.

        Raises:
          StorageError: the file cannot be opened.
        """
        import fcntl

        file = self._open()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(file, _MOST_TEXT, 0).decode(errors="replace").strip()
            os.close(file)
            return holder or "another process"
        self._file = file
        os.ftruncate(file, 0)
        # The lock is what counts; on a full disk others learn less about who has it.
        with contextlib.suppress(OSError):
            os.pwrite(file, _myself().encode(errors="replace"), 0)
        return ""

    def release(self) -> None:
        """Give the lease back, if it is held."""
        if self._file is not None:
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(PermissionError):
                # Other users take leases too; who did not make the folder may not change it.
                self.folder.chmod(0o1777)
            try:
                # Linux refuses O_CREAT on another user's file in such a folder, even where it exists.
                file = os.open(self.path, flags)
            except FileNotFoundError:
                file = os.open(self.path, flags | os.O_CREAT, 0o666)
            facts = os.fstat(file)
            if facts.st_uid == os.geteuid() and stat.S_IMODE(facts.st_mode) != 0o666:
                os.fchmod(file, 0o666)
            return file
        except OSError as error:
            raise StorageError(
                f"the lease {self.path} cannot be opened: {error.strerror}; "
                "name a folder that all sweeps of this host can write to: --lease-folder"
            ) from None


class Presence(Lease):
    """A sweep's mark on a device that several may share, as a processor is. It is there from entering to leaving."""

    def __enter__(self) -> Self:
        import fcntl

        self._file = self._open()
        fcntl.flock(self._file, fcntl.LOCK_SH)
        return self

    @property
    def is_alone(self) -> bool:
        """Whether no other sweep has its mark there now."""
        import fcntl

        assert self._file is not None, "it is asked between entering and leaving"
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            # A lock that could not be raised is lost, and one that was would look like a second sweep to others.
            fcntl.flock(self._file, fcntl.LOCK_SH)
        return True


@contextlib.contextmanager
def leased(
    devices: Sequence[tuple[str, str]],
    *,
    wait: bool = False,
    interrupt: Callable[[], bool] = lambda: False,
    say: Callable[[str], object] = lambda text: None,
    folder: Path | None = None,
) -> Iterator[None]:
    """Hold the leases of ``devices``, pairs of a key and a name for people.

    Raises:
      StorageError: one is held by another process, and ``wait`` is false.
      Interrupted: while waiting.
    """
    with contextlib.ExitStack() as held:
        # In one order, so that two sweeps never wait for one another.
        for key, name in sorted(devices):
            lease = held.enter_context(Lease(key, folder or lease_folder()))
            shown = ""
            while holder := lease.take():
                text = f"{name} is in use by {holder}"
                if not wait:
                    raise StorageError(f"{text}; stop it, choose other --devices, or use --wait")
                if text != shown:
                    say(f"{text}; waiting")
                    shown = text
                if interrupt():
                    raise Interrupted("interrupted while waiting for a device")
                time.sleep(_POLL_S)
        yield


def _myself() -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"process {os.getpid()} since {since} ({command_words(sys.argv)})"[:_MOST_TEXT]
