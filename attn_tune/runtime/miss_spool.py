"""The spool: a bounded file of missed lookups that many processes of a host append to, and that tools read later.

One file a host, ``misses-HOST.jsonl``: a line is written whole with ``O_APPEND`` and the file is closed again, so that
nothing is held across a fork, and files of several hosts may lie in one shared folder. Past ``MAX_BYTES`` the file
becomes ``misses-HOST.jsonl.1`` and so on; of these ``KEEP`` stay, the oldest go.
"""

import errno
import fcntl
import json
import math
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attn_tune.schema.config import is_mapping

ON_MISS = "ATTN_TUNE_ON_MISS"
RECORD = "record"
MAX_BYTES = 1 << 20
KEEP = 4
# A line that is longer is not ours.
MAX_LINE = 4096
MAX_NEAREST = 400

_VERSION = 1
_TEXTS = ("op", "direction", "signature", "device", "nearest", "process")


@dataclass(frozen=True, kw_only=True, slots=True)
class SpoolLine:
    """A line of one process about one missed key.

    Attributes:
      op: the op.
      direction: the direction.
      signature: the text of the signature.
      device: the device.
      nearest: the difference to the nearest stored row.
      count: the number of lookups so far.
      process: a name of the process that no other process ever has.
      time: seconds since 1970.
    """

    op: str
    direction: str
    signature: str
    device: str
    nearest: str
    count: int
    process: str
    time: int


@dataclass(frozen=True, kw_only=True, slots=True)
class BadLine:
    """A line that was skipped, and why.

    Attributes:
      path: the file.
      number: the number of the line, from 1.
      reason: what is wrong with it.
    """

    path: str
    number: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.number}: {self.reason}"


def spool_folder() -> Path:
    """The path after ``record:`` in ``ATTN_TUNE_ON_MISS``, or ``attn-tune/misses`` in the user's state directory."""
    mode, _, named = os.environ.get(ON_MISS, "").partition(":")
    if mode == RECORD and named:
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(state) / "attn-tune" / "misses"


def append(folder: Path, line: SpoolLine) -> bool:
    """Writes one line; False when it could not be written: a full disk, a read-only folder, a name no file can have."""
    data: dict[str, Any] = {"v": _VERSION}
    data |= {name: getattr(line, name) for name in (*_TEXTS, "count", "time")}
    data["nearest"] = line.nearest[:MAX_NEAREST]
    # The newline in front ends what a full disk may have cut short before.
    encoded = b"\n" + json.dumps(data, separators=(",", ":")).encode("ascii") + b"\n"
    if len(encoded) > MAX_LINE:
        return False
    if folder.parts[:1] == ("~",):
        # A user without a home: never write into the working directory instead.
        return False
    try:
        path = folder / f"misses-{_host()}.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        if _write(path, encoded, MAX_BYTES):
            return True
        # While another process moves the full file aside, it may grow a little more.
        _rotate(path, len(encoded))
        return _write(path, encoded, 2 * MAX_BYTES)
    except (OSError, ValueError):
        return False


def spool_files(path: Path) -> tuple[Path, ...]:
    """The spool files at or in ``path``, oldest first within a host; none when there is nothing."""
    if path.is_file():
        return (path,)
    found = [p for p in path.glob("misses-*.jsonl*") if p.is_file() and not p.name.endswith(".lock")]
    return tuple(sorted(found, key=_age))


def read_lines(path: Path) -> Iterator[SpoolLine | BadLine]:
    """The lines of one file; what cannot be read is given as a ``BadLine``, and the rest follows.

    Raises:
      OSError: the file cannot be opened or read.
    """
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(MAX_LINE + 1):
            number += 1
            if len(raw) > MAX_LINE and not raw.endswith(b"\n"):
                while raw and not raw.endswith(b"\n"):
                    raw = file.readline(MAX_LINE + 1)
                yield BadLine(path=str(path), number=number, reason=f"longer than {MAX_LINE} bytes")
            elif raw.strip():
                line = _parse(raw)
                if isinstance(line, str):
                    line = BadLine(path=str(path), number=number, reason=line)
                yield line


def _write(path: Path, encoded: bytes, limit: int) -> bool:
    """Appends if the file does not outgrow ``limit``; whether all of it was written.

    Raises:
      OSError: it was not, or not whole.
    """
    # Not through a link, and a pipe that someone put there must not block the job.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o644)
    try:
        if os.fstat(descriptor).st_size + len(encoded) > limit:
            return False
        if os.write(descriptor, encoded) != len(encoded):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return True
    finally:
        os.close(descriptor)


def _parse(raw: bytes) -> SpoolLine | str:
    try:
        data: Any = json.loads(raw)
    except (ValueError, RecursionError):
        return "not JSON; cut short when it was written?"
    if not is_mapping(data):
        return "not a JSON object"
    if data.get("v") != _VERSION:
        return f"version {data.get('v')!r}, this attn-tune reads {_VERSION}"
    for name in _TEXTS:
        if not isinstance(data.get(name), str):
            return f"key {name!r} must be a text, got {data.get(name)!r}"
    for name in ("count", "time"):
        value = data.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
            return f"key {name!r} must be a natural number, got {value!r}"
    numbers = {name: data[name] for name in ("count", "time")}
    return SpoolLine(**{name: data[name] for name in _TEXTS}, **numbers)


def _rotate(path: Path, size: int) -> None:
    """Moves a full file aside, unless another process is at it just now."""
    lock = path.with_name(path.name + ".lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        try:
            # Another process may have moved it between our look and our lock.
            if path.stat().st_size + size <= MAX_BYTES:
                return
        except FileNotFoundError:
            return
        for number in range(KEEP - 1, 0, -1):
            older = path.with_name(f"{path.name}.{number}")
            if older.exists():
                os.replace(older, path.with_name(f"{path.name}.{number + 1}"))
        os.replace(path, path.with_name(f"{path.name}.1"))
    finally:
        os.close(descriptor)


def _age(path: Path) -> tuple[str, float]:
    base, _, number = path.name.partition(".jsonl")
    rotated = number.removeprefix(".")
    return base, -float(rotated) if rotated.isdigit() else math.inf


def _host() -> str:
    name = socket.gethostname() or "host"
    return "".join(c if (c.isalnum() and c.isascii()) or c in "-." else "_" for c in name)[:64]
