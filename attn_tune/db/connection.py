"""Opening the SQLite file: what is refused before SQLite may touch it, and how a connection is set up."""

import contextlib
import json
import os
import random
import re
import secrets
import sqlite3
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from attn_tune.db.filesystem import filesystem_type, is_network
from attn_tune.db.migrations import APPLICATION_ID, SCHEMA_VERSION, migrations
from attn_tune.runtime.archive import brief
from attn_tune.runtime.whole_files import status_of_plain
from attn_tune.schema import IntegrityError, NoDataError, StorageError, UsageError
from attn_tune.schema.errors import warn

BUSY_TIMEOUT_S = 30.0
# Beyond the timeout of SQLite's own waiting, for the turn to write.
WRITE_PATIENCE_S = 120.0
OLDEST_SQLITE = (3, 37, 0)  # STRICT tables
# Making a database takes well below a second. A draft that is older was left by a process that was killed.
DRAFT_LIFE_S = 600.0

_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_IMMUTABLE = "mode=ro&immutable=1"


def connect(path: Path, *, create: bool, read_only: bool) -> sqlite3.Connection:
    """A connection to the lab database at ``path``, migrated to this version's schema.

    A new database is built aside and linked into place, so that no other process ever sees half of one.

    Raises:
      NoDataError: nothing is there, and ``create`` is off.
      IntegrityError: the file is no database, another application's, damaged, or from a newer attn-tune. Nothing
        was written.
      StorageError: ``path`` is no regular file, the file or its folder cannot be opened, or is locked by others for too
        long.
    """
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StorageError(f"SQLite {sqlite3.sqlite_version} is too old; 3.37 or newer is needed")
    with storage_errors(path):
        if read_only:
            return open_reader(path)[0]
        if create and _is_vacant(path):
            _refuse_leftovers(path)
            _create(path)
        check_header(path)
        _remove_old_drafts(path)
        return _open_writable(path)


def check_header(path: Path) -> None:
    """Reads the first 100 bytes and refuses what is not ours.

    Raises:
      NoDataError: nothing is there.
      IntegrityError: not a lab database this version can use.
      StorageError: it is a folder, a FIFO, a device or a socket.
    """
    info = _status(path)
    if info is None:
        raise NoDataError(f"there is no database at {path}; a sweep makes one")
    size = info.st_size
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        raise IntegrityError(f"{path} is not a SQLite database ({size} bytes)")
    (page_size,) = struct.unpack(">H", header[16:18])
    (change_counter, pages) = struct.unpack(">II", header[24:32])
    (version, application) = struct.unpack(">I4xI", header[60:72])
    (valid_for,) = struct.unpack(">I", header[92:96])
    if application != APPLICATION_ID:
        raise IntegrityError(f"{path} is another application's database (id {application:#x})")
    _check_version(path, version)
    page_size = 65536 if page_size == 1 else page_size
    # While a journal is pending the file may rightly be short: SQLite completes it on opening.
    pending = any(_size(path, suffix) for suffix in ("-wal", "-journal"))
    if valid_for == change_counter and size < page_size * pages and not pending:
        raise IntegrityError(
            f"{path} is truncated: {size} bytes of {page_size * pages}; restore it from a copy"
        )


def stored_version(path: Path) -> int:
    """The schema of the lab database at ``path``, without opening it.

    Raises:
      IntegrityError: not a lab database this version can use.
      StorageError: the file cannot be read.
    """
    with storage_errors(path):
        check_header(path)
        with path.open("rb") as file:
            return int.from_bytes(file.read(64)[60:], "big")


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turns SQLite's and the system's errors about the file itself into attn-tune's."""
    try:
        yield
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
        raise UsageError(
            f"{path} cannot hold the text {error.object[:200]!a}: it is not valid Unicode"
        ) from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise IntegrityError(f"{path} is damaged: it holds text that cannot be read") from error
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{brief(path)} cannot be used: {error.strerror or error}") from error


@contextlib.contextmanager
def immediate(connection: sqlite3.Connection) -> Iterator[None]:
    """One write transaction. It takes the write lock at once: a deferred one that reads first and then writes fails
    with SQLITE_BUSY at once, whatever the timeout, when another writer got in between.
    """
    _begin(connection)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def attached(path: Path, connection: sqlite3.Connection, uri: str, name: str) -> Iterator[None]:
    """Another database beside the main one of ``connection``, called ``name`` in SQL."""
    with storage_errors(path):
        connection.execute(f"ATTACH ? AS {name}", (uri,))
    try:
        yield
    finally:
        connection.execute(f"DETACH {name}")


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


def _check_version(path: Path, version: int) -> None:
    if version > SCHEMA_VERSION:
        raise IntegrityError(
            f"{path} has schema {version}, written by a newer attn-tune; this one knows {SCHEMA_VERSION}: upgrade"
        )


def _size(path: Path, suffix: str) -> int:
    side = path.with_name(path.name + suffix)
    return side.stat().st_size if side.exists() else 0


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
    """Removes the drafts that processes left when they were killed while they made this database."""
    draft = re.compile(re.escape(f".{path.name}.") + r"[0-9a-f]{16}\.new(-journal|-wal|-shm)?")
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            if draft.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    if time.time() - entry.stat().st_mtime > DRAFT_LIFE_S:
                        os.unlink(entry.path)


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        connection = sqlite3.connect(draft, isolation_level=None)
        try:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            migrate(connection)
            if not is_network(path):
                connection.execute("PRAGMA journal_mode = wal")
        finally:
            connection.close()
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
    if path.exists() and _is_vacant(path):
        os.replace(draft, path)
        return
    try:
        os.link(draft, path)
    except FileExistsError:
        pass  # the other database is as good
    except OSError:  # a file system without hard links
        if _is_vacant(path):
            os.replace(draft, path)


def migrate(connection: sqlite3.Connection) -> None:
    """Brings the database of ``connection`` to this version's schema; makes it in an empty one."""
    import sqlite_utils

    db = sqlite_utils.Database(connection, execute_plugins=False)
    with immediate(connection):
        migrations().apply(db)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _open_writable(path: Path) -> sqlite3.Connection:
    if _size(path, "-wal") and is_network(path):
        raise StorageError(f"{path} is being written, or was left unfinished, {_on_network(path)}")
    connection = _connect(path, "mode=rw")
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        _check_version(path, version)
        _set_journal(connection, path)
        # With NORMAL a power cut may take the last transactions of a write-ahead log. FULL costs one fsync each.
        connection.execute("PRAGMA synchronous = FULL")
        if version < SCHEMA_VERSION:
            migrate(connection)
        # After migrating: a table that others refer to is built again without them.
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _set_journal(connection: sqlite3.Connection, path: Path) -> None:
    wanted = "delete" if is_network(path) else "wal"
    if wanted == "delete":
        warn(
            f"{path} is on a network file system: using a rollback journal; keep it on a local disk to let "
            "others read while a sweep writes",
        )
    if connection.execute("PRAGMA journal_mode").fetchone()[0] != wanted:
        connection.execute(f"PRAGMA journal_mode = {wanted}")


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
    with storage_errors(path):
        check_header(path)
        mode = "mode=ro"
        if is_network(path):
            if _size(path, "-wal"):
                raise StorageError(f"{path} cannot be read: it is kept {_on_network(path)}")
            mode = _IMMUTABLE if _uses_wal(path) else mode
        try:
            return _checked_reader(path, mode), _uri(path, mode)
        except sqlite3.OperationalError as error:
            if mode == _IMMUTABLE or not _is_read_only(path):
                raise
            # A WAL database needs side files next to it; where none can be made, nobody else can write either.
            if _size(path, "-wal"):
                warn(
                    f"{path} has unmerged writes and its folder is not writable ({error}): the newest rows may be "
                    "missing",
                )
            return _checked_reader(path, _IMMUTABLE), _uri(path, _IMMUTABLE)


def _is_read_only(path: Path) -> bool:
    return not os.access(path.parent, os.W_OK)


def _uses_wal(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(20)[18:] == b"\x02\x02"


def _checked_reader(path: Path, mode: str) -> sqlite3.Connection:
    connection = _connect(path, mode)
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        _check_version(path, version)
        if version < SCHEMA_VERSION:
            raise StorageError(
                f"{path} has the older schema {version}; open it once for writing (or a copy of it) to migrate it"
            )
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        _uri(path, mode), uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None
    )
    connection.row_factory = sqlite3.Row
    return connection


def _uri(path: Path, mode: str) -> str:
    # As bytes: a name that is not valid in the locale's encoding has surrogates, which ``quote`` refuses.
    return f"file:{quote(os.fsencode(path.absolute()))}?{mode}"
