"""The writer lock: one sweep at a time per database, kept as a row, so that it works on every file system."""

import os
import secrets
import socket
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from attn_tune.db.store.times import now_us
from attn_tune.schema import StorageError

# A holder that this host cannot look at is given up when it was silent for longer.
SILENCE_US = 10 * 60 * 1_000_000

_GET = "SELECT token, host, pid, scope, process_start, heartbeat_us FROM writer"
_SET = """
INSERT OR REPLACE INTO writer (id, token, host, pid, scope, process_start, heartbeat_us)
VALUES (1, :token, :host, :pid, :scope, :process_start, :now)
"""
_BEAT = "UPDATE writer SET heartbeat_us = :now WHERE token = :token"
_DROP = "DELETE FROM writer WHERE token = ?"


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """A process that writes.

    Attributes:
      host: the name of its host.
      pid: its number.
      scope: the boot and PID namespace in which ``pid`` has a meaning.
      start: its start in ticks since boot, which tells it from a later process with the same number.
    """

    host: str
    pid: int
    scope: str
    start: str

    @classmethod
    def current(cls) -> "Process":
        """This process."""
        pid = os.getpid()
        return cls(host=socket.gethostname(), pid=pid, scope=_scope(), start=_start(pid))

    def is_gone(self, silent_us: int) -> bool:
        """True when the process certainly ended, or cannot be looked at from here and was silent for too long."""
        if self.scope != _scope():
            return silent_us > SILENCE_US
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # it lives, and belongs to somebody else
        return _start(self.pid) != self.start


class WriterLock:
    """The lock of one connection, from its first run's begin to its last one's end.

    Every method runs inside the caller's transaction.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path):
        self._connection = connection
        self._path = path
        self._token = secrets.token_hex(8)

    def acquire(self) -> bool:
        """Takes the lock; True when it was taken over from a holder that is gone.

        Raises:
          StorageError: another process writes; the message names it.
        """
        row = self._connection.execute(_GET).fetchone()
        if row and row["token"] != self._token:
            holder = _process(row)
            silent_us = now_us() - row["heartbeat_us"]
            if not holder.is_gone(silent_us):
                raise StorageError(
                    f"{self._path} is being written by process {holder.pid} on {holder.host} (last heard of "
                    f"{max(0, silent_us) // 1_000_000} s ago); wait for it, stop it, or use another database"
                )
        self._connection.execute(_SET, self._values())
        return row is not None and row["token"] != self._token

    def check(self) -> None:
        """Notes that the holder lives.

        Raises:
          StorageError: the lock is not, or no longer, this database's.
        """
        values = {"token": self._token, "now": now_us()}
        if self._connection.execute(_BEAT, values).rowcount == 1:
            return
        row = self._connection.execute(_GET).fetchone()
        by = f" to process {row['pid']} on {row['host']}" if row else ""
        raise StorageError(f"{self._path}: the writer lock was lost{by}; begin a new run")

    def release(self) -> None:
        """Gives the lock back, if it is held."""
        self._connection.execute(_DROP, (self._token,))

    def _values(self) -> dict[str, str | int]:
        me = Process.current()
        return {
            "token": self._token,
            "host": me.host,
            "pid": me.pid,
            "scope": me.scope,
            "process_start": me.start,
            "now": now_us(),
        }


def holder(connection: sqlite3.Connection) -> Process | None:
    """The process that writes now, None when nobody does."""
    row = connection.execute(_GET).fetchone()
    if row is None or _process(row).is_gone(now_us() - row["heartbeat_us"]):
        return None
    return _process(row)


def _process(row: sqlite3.Row) -> Process:
    return Process(host=row["host"], pid=row["pid"], scope=row["scope"], start=row["process_start"])


def _scope() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _start(pid: int) -> str:
    """The start of the process in ticks since boot; ``""`` where it is unknown, and for a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The name in parentheses may hold anything, so count from behind it.
    state, *rest = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else rest[18]
