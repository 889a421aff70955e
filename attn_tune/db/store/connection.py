"""Opening the SQLite file: the checks before SQLite may touch it, and the settings of a connection."""

import contextlib
import json
import os
import random
import re
import secrets
import sqlite3
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from attn_tune.db.store.filesystem import filesystem_type, is_network
from attn_tune.db.store.rows import RowError
from attn_tune.db.store.schema import APPLICATION_ID, SCHEMA_VERSION, create_schema, find_gap
from attn_tune.packs.archive import brief
from attn_tune.packs.plain_files import status_of_plain
from attn_tune.runtime.locks import Lock
from attn_tune.schema import IntegrityError, NoDataError, StorageError, UsageError
from attn_tune.schema.errors import warn

BUSY_TIMEOUT_S = 30.0
# Beyond the timeout of SQLite's own waiting, for the turn to write.
WRITE_PATIENCE_S = 120.0
# A new database is a draft for some milliseconds. One of this age is of a process that was killed meanwhile.
OLD_DRAFT_S = 60.0
OLDEST_SQLITE = (3, 38, 0)  # STRICT tables, the operator ->>

_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_WAL_VERSIONS = b"\x02\x02"
_IMMUTABLE = "mode=ro&immutable=1"

# Device and inode of the files that this process has open, how often each, and the lock of both.
_open_files: Counter[tuple[int, int]] = Counter()
_opening = Lock()


class LabConnection(sqlite3.Connection):
    """A connection that is counted in ``_open_files`` until it is closed."""

    _file: tuple[int, int] | None = None

    def count(self, path: Path) -> None:
        """Count the file at ``path``, which this connection has open; the caller holds ``_opening``."""
        self._file = _identity(path.stat())
        _open_files[self._file] += 1

    def close(self) -> None:
        """Close the connection, and count its file no longer."""
        super().close()
        if self._file is None:
            return
        with _opening:
            _open_files[self._file] -= 1
            self._file = None


def connect(path: Path, *, create: bool, read_only: bool) -> sqlite3.Connection:
    """A connection to the lab database at ``path``.

    A new database is written aside and linked into place, so that no other process ever sees half of one.

    Raises:
      NoDataError: nothing is there, and ``create`` is off.
      IntegrityError: the file is no database, another application's, damaged, or of another schema. Nothing was
        written.
      StorageError: ``path`` is no regular file, the file or its folder cannot be opened, or is locked by others for too
        long.
    """
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StorageError(f"SQLite {sqlite3.sqlite_version} is too old; 3.38 or newer is needed")
    with storage_errors(path):
        if read_only:
            return open_reader(path)[0]
        if create and _is_vacant(path):
            _refuse_leftovers(path)
            _create(path)
        _remove_old_drafts(path)
        with _opening:
            check_header(path)
            connection = _open_writable(path)
            connection.count(path)
        return connection


def check_header(path: Path) -> None:
    """Reads the first 100 bytes, and refuses a file that is no lab database of this version.

    A file that this process has open is not read again: closing any descriptor of a file drops the POSIX locks that
    SQLite holds on it in this process, and then another process deletes the write-ahead log while this one writes.

    Raises:
      NoDataError: nothing is there.
      IntegrityError: not a lab database this version can use.
      StorageError: it is a folder, a FIFO, a device or a socket.
    """
    info = _status(path)
    if info is None:
        raise NoDataError(f"there is no database at {path}; a sweep makes one")
    if _open_files[_identity(info)] > 0:
        return
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
        # While a journal is pending the file may rightly be short: SQLite completes it on opening. In this order: where
        # there is none now, other processes have completed the file as the header describes it.
        pending = any(_size(path, suffix) for suffix in ("-wal", "-journal"))
        size = os.fstat(file.fileno()).st_size
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        raise IntegrityError(f"{path} is not a SQLite database ({size} bytes)")
    (page_size,) = struct.unpack(">H", header[16:18])
    (change_counter, pages) = struct.unpack(">II", header[24:32])
    (version, application) = struct.unpack(">I4xI", header[60:72])
    (valid_for,) = struct.unpack(">I", header[92:96])
    if application != APPLICATION_ID:
        raise IntegrityError(f"{path} is another application's database (id {application:#x})")
    if version != SCHEMA_VERSION:
        raise IntegrityError(
            f"{path} has schema {version}, and this attn-tune knows {SCHEMA_VERSION}; open it with the version that "
            "wrote it, or sweep into another database"
        )
    page_size = 65536 if page_size == 1 else page_size
    if valid_for == change_counter and size < page_size * pages and not pending:
        raise IntegrityError(f"{path} is truncated: {size} bytes of {page_size * pages}; restore it from a copy")


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turns SQLite's and the system's errors about the file itself into attn-tune's."""
    try:
        yield
    except RowError as error:
        raise IntegrityError(f"{path} is damaged: {error}; restore it from a copy") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StorageError(
                f"{path} stayed locked by another process for {BUSY_TIMEOUT_S:.0f} s: {error}"
            ) from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise IntegrityError(f"{path} is damaged: {error}; restore it from a copy") from error
        if code in (
            sqlite3.SQLITE_READONLY,
            sqlite3.SQLITE_IOERR,
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_PERM,
        ):
            raise StorageError(f"{path} cannot be used: {error}") from error
        if str(error).startswith("no such "):  # the version says that the schema has it
            raise IntegrityError(f"{path} is damaged: {error}; restore it from a copy") from error
        if "Could not decode" in str(error):  # comes from Python, and so without a code
            raise IntegrityError(f"{path} is damaged: a text is not UTF-8") from error
        raise
    except UnicodeEncodeError as error:  # a lone surrogate, which no file can hold
        why = "it is not valid Unicode (with a locale of ASCII, set PYTHONUTF8=1)"
        raise UsageError(f"{path} cannot hold the text {error.object[:200]!a}: {why}") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise IntegrityError(f"{path} is damaged: it holds text that cannot be read") from error
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{brief(path)} cannot be used: {error.strerror or error}") from error


@contextlib.contextmanager
def immediate(connection: sqlite3.Connection) -> Iterator[None]:
    """One write transaction. It takes the write lock at once: a deferred one that reads first and then writes fails
    with SQLITE_BUSY at once, despite the timeout, when another writer got in between.
    """
    _begin(connection)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _begin(connection: sqlite3.Connection) -> None:
    # SQLite's own waiting looks ten times a second and wakes all who wait alike; among dozens of writers some starve.
    end = time.monotonic() + WRITE_PATIENCE_S
    pause_s = 0.001
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
        time.sleep(random.uniform(0, pause_s))
        pause_s = min(2 * pause_s, 0.1)


def _size(path: Path, suffix: str) -> int:
    try:
        return path.with_name(path.name + suffix).stat().st_size
    except FileNotFoundError:
        return 0


def _identity(info: os.stat_result) -> tuple[int, int]:
    return info.st_dev, info.st_ino


def _status(path: Path) -> os.stat_result | None:
    """The status of the database file at ``path``; None where nothing is; StorageError for what is no regular file."""
    return status_of_plain(path, f"database {path}")


def _is_vacant(path: Path) -> bool:
    """True where a new database may be put: nothing is at ``path``, or an empty file."""
    info = _status(path)
    return info is None or info.st_size == 0


def _refuse_leftovers(path: Path) -> None:
    # SQLite would play the log of a database that was deleted or moved into the new one.
    for suffix in ("-wal", "-journal"):
        # Vacant still: another process may just have made a database, and its log.
        if _size(path, suffix) and _is_vacant(path):
            raise StorageError(
                f"{path}{suffix} holds the last writes of a database that is gone from {path}; put the database back, "
                f"or delete {path}{suffix}"
            )


def _remove_old_drafts(path: Path) -> None:
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.new")
    with contextlib.suppress(OSError):  # no folder, or not ours to tidy
        for draft in path.parent.iterdir():
            if name.fullmatch(draft.name) and time.time() - draft.lstat().st_mtime > OLD_DRAFT_S:
                draft.unlink()


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        create_schema(connection)
        data = bytearray(connection.serialize())
    if not is_network(path):
        # The header's format versions say that it has a write-ahead log: processes that open it need not change that.
        data[18:20] = _WAL_VERSIONS
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _put(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    # The name too must outlast a power cut. Some file systems cannot promise it.
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _put(draft: Path, path: Path) -> None:
    """Gives ``draft`` the name ``path``, unless another process gave it to a database meanwhile."""
    with contextlib.suppress(OSError):  # something is there, or the file system has no hard links
        os.link(draft, path)
        return
    if _is_vacant(path):  # else another database is there, which is as good
        os.replace(draft, path)


def _open_writable(path: Path) -> LabConnection:
    if _size(path, "-wal") and is_network(path):
        raise StorageError(f"{path} is being written, or was left unfinished, {_on_network(path)}")
    journal = "delete" if is_network(path) else "wal"
    if journal == "delete":
        warn(
            f"{path} is on a network file system: using a rollback journal; keep it on a local disk to let "
            "others read while a sweep writes",
        )
    connection = _connect(path, "mode=rw")
    try:
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != journal:
            connection.execute(f"PRAGMA journal_mode = {journal}")
        # With NORMAL a power cut may take the last transactions of a write-ahead log. FULL costs one fsync each.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _on_network(path: Path) -> str:
    return (
        f"with a write-ahead log, which does not work across hosts, and this is a network file system "
        f"({filesystem_type(path)}). Finish on the host that wrote it, or copy it and its -wal file to a local disk; "
        "let each host have a database of its own and bring them together with `attn-tune lab merge`"
    )


def open_reader(path: Path) -> tuple[sqlite3.Connection, str]:
    """A connection that only reads, with all the checks of ``connect``, and the URI by which SQLite opened it.

    Raises:
      NoDataError, IntegrityError, StorageError: as ``connect``.
    """
    with storage_errors(path), _opening:
        check_header(path)
        connection, uri = _open_reader(path)
        connection.count(path)
    return connection, uri


def _open_reader(path: Path) -> tuple[LabConnection, str]:
    mode = "mode=ro"
    if is_network(path):
        if _size(path, "-wal"):
            raise StorageError(f"{path} cannot be read: it is kept {_on_network(path)}")
        mode = _IMMUTABLE if _uses_wal(path) else mode
    try:
        return _connect(path, mode), _uri(path, mode)
    except sqlite3.OperationalError as error:
        if mode == _IMMUTABLE or os.access(path.parent, os.W_OK):
            raise
        # A WAL database needs side files next to it; where none can be made, no other process can write either.
        if _size(path, "-wal"):
            warn(
                f"{path} has unmerged writes and its folder is not writable ({error}): the newest rows may be missing",
            )
        return _connect(path, _IMMUTABLE), _uri(path, _IMMUTABLE)


def _uses_wal(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(20)[18:] == _WAL_VERSIONS


def _connect(path: Path, mode: str) -> LabConnection:
    connection = sqlite3.connect(
        _uri(path, mode), uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, factory=LabConnection
    )
    connection.row_factory = sqlite3.Row
    try:
        # SQLite opens files late; now it says what is wrong.
        connection.execute("PRAGMA schema_version")
        if gap := find_gap(connection):
            raise IntegrityError(f"{path} is damaged: {gap}; restore it from a copy, or sweep into another database")
    except BaseException:
        connection.close()
        raise
    return connection


def _uri(path: Path, mode: str) -> str:
    # As bytes: a name that is not valid in the locale's encoding has surrogates, which ``quote`` refuses.
    return f"file:{quote(os.fsencode(path.absolute()))}?{mode}"


def check_in_place(path: Path, file: Path, identity: os.stat_result) -> None:
    """Refuse an open file that has lost its name: SQLite keeps writing to it, without an error.

    Args:
      path: the path that the user gave, for the message.
      file: the absolute path.
      identity: the file as it was when it was opened.

    Raises:
      StorageError: it was deleted, moved or replaced.
    """
    try:
        found = file.stat()
    except FileNotFoundError:
        what = "was deleted or moved away"
    else:
        if os.path.samestat(found, identity):
            return
        what = "was replaced by another file"
    raise StorageError(
        f"{path} {what} while it was open, so nothing more is recorded; put it back beside its -wal file, "
        "or begin again"
    )
