"""An open lab database: its connection, its transactions, and operations on the file as a whole."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from attn_tune.db.store.connection import attached, immediate, storage_errors
from attn_tune.db.store.references import References
from attn_tune.db.store.writer import WriterLock
from attn_tune.schema import StorageError


class LabFile:
    """The base of ``Database``: transactions on one file, in one process and one thread."""

    def __init__(self, connection: sqlite3.Connection, path: Path, *, read_only: bool):
        self.path = path
        self.read_only = read_only
        self._connection = connection
        self._references = References(connection)
        self._lock = WriterLock(connection, path)
        self._pid = os.getpid()
        self._file = path.absolute()  # the process may change its working directory
        with storage_errors(path):
            self._identity = self._file.stat()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One write transaction: everything in it, or nothing.

        Raises:
          StorageError: opened read-only, inherited by a forked process, or the file was deleted, moved or replaced
            since it was opened. Nothing was written.
        """
        if self.read_only:
            raise StorageError(f"{self.path} was opened read-only")
        if self._is_inherited:
            raise StorageError(f"{self.path} was opened by process {self._pid}; open it again here")
        try:
            with storage_errors(self.path), immediate(self._connection):
                yield self._connection
                # Last, so that no write to a file that has lost its name is acknowledged.
                self._check_in_place()
        except BaseException:
            self._references.forget()
            raise

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Holds the writer lock inside a transaction, so that no sweep goes on.

        Raises:
          StorageError: another process writes; the message names it.
        """
        self._lock.acquire()
        yield
        self._lock.release()

    @contextlib.contextmanager
    def without_foreign_keys(self) -> Iterator[None]:
        """Turns checks of references off, around a transaction that checks them itself."""
        self._connection.execute("PRAGMA foreign_keys = OFF")
        try:
            yield
        finally:
            self._connection.execute("PRAGMA foreign_keys = ON")

    def vacuum(self) -> None:
        """Writes the file anew without its free pages; needs room for a copy meanwhile."""
        self._references.forget()
        with storage_errors(self.path):
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def attached(self, uri: str, name: str) -> contextlib.AbstractContextManager[None]:
        """Another database beside this one, called ``name`` in SQL."""
        return attached(self.path, self._connection, uri, name)

    def _check_in_place(self) -> None:
        # SQLite goes on writing to a file that has lost its name, and says nothing.
        try:
            found = self._file.stat()
        except FileNotFoundError:
            what = "was deleted or moved away"
        else:
            if os.path.samestat(found, self._identity):
                return
            what = "was replaced by another file"
        raise StorageError(
            f"{self.path} {what} while it was open, so nothing more is recorded; put it back beside its -wal file, "
            "or begin again"
        )

    @property
    def _is_inherited(self) -> bool:
        """Whether this is a forked child, which must leave its parent's connection alone."""
        return self._pid != os.getpid()
