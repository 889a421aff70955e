"""Files that are written whole or not at all."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def write_whole(target: Path, data: bytes) -> None:
    """Puts ``data`` at ``target``, readable by all, over what is there; durably, and never half of it.

    Raises:
      OSError: it cannot be written.
    """
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
