"""The file itself: only regular files become databases, a lost file is noticed, and killed processes leave nothing."""

import contextlib
import os
import signal
import sqlite3
import stat
import subprocess
import sys

import pytest

from attn_tune.db import Database
from attn_tune.db.store import connection as connections
from attn_tune.db.store.garbage import collect_garbage
from attn_tune.schema import Device, IntegrityError, NoDataError, StorageError, UsageError
from tests.db.facts import DEVICE, begin, make_trial


def make_fifo(path):
    os.mkfifo(path)


def make_device(path):
    if os.geteuid() != 0:
        pytest.skip("only root makes device nodes")
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("device nodes cannot be made here")


@pytest.mark.parametrize(
    ("make", "kind"), [(make_fifo, "FIFO"), (make_device, "character device")], ids=["fifo", "node"]
)
@pytest.mark.parametrize("options", [{}, {"create": True}, {"read_only": True}], ids=["write", "create", "read"])
@pytest.mark.parametrize("link", [False, True], ids=["itself", "link"])
def test_a_special_file_is_refused_and_stays(tmp_path, make, kind, options, link):
    special = path = tmp_path / "special"
    make(special)
    before = special.lstat()
    if link:
        path = tmp_path / "lab.db"
        path.symlink_to(special)
    with pytest.raises(StorageError, match=f"{path.name} is a {kind}, not a regular file"):
        Database.open(path, **options)
    assert (special.lstat().st_mode, special.lstat().st_ino) == (before.st_mode, before.st_ino)


def test_a_special_file_that_appears_meanwhile_is_not_replaced(tmp_path, monkeypatch):
    """Another process makes it between the first look and the moment when the new database gets its name."""
    path, real = tmp_path / "lab.db", connections.create_schema

    def create_schema(connection):
        real(connection)
        os.mkfifo(path)

    monkeypatch.setattr(connections, "create_schema", create_schema)
    with pytest.raises(StorageError, match="FIFO"):
        Database.open(path, create=True)
    assert stat.S_ISFIFO(path.lstat().st_mode)
    assert [p.name for p in tmp_path.iterdir()] == ["lab.db"]


def lose(path):
    path.unlink()


def move(path):
    path.rename(path.with_name("elsewhere.db"))


def replace(path):
    with Database.open(path.with_name("other.db"), create=True):
        pass
    os.replace(path.with_name("other.db"), path)


@pytest.mark.parametrize(
    ("harm", "said"),
    [(lose, "was deleted or moved"), (move, "was deleted or moved"), (replace, "was replaced")],
)
def test_a_lost_database_acknowledges_nothing_more(tmp_path, harm, said):
    path = tmp_path / "lab.db"
    database = Database.open(path, create=True)
    run = begin(database)
    database.record(run, make_trial())
    harm(path)
    for write in (
        lambda: database.record(run, make_trial({"i": 1})),
        lambda: database.record_many(run, [make_trial({"i": 2})]),
        lambda: database.heartbeat(run),
        lambda: database.end_run(run, "finished"),
        database.rebuild_decisions,
        database.close,
    ):
        with pytest.raises(StorageError, match=said):
            write()
    moved = path.with_name("elsewhere.db")
    if moved.exists():
        moved.rename(path)
        with Database.open(path) as found:
            assert sum(1 for _ in found.trials()) == 1


def test_a_new_database_is_not_made_beside_the_log_of_a_lost_one(tmp_path):
    """SQLite would play that log into it."""
    path, wal = tmp_path / "lab.db", tmp_path / "lab.db-wal"
    database = Database.open(path, create=True)
    database.record(begin(database), make_trial())
    path.unlink()
    with pytest.raises(StorageError):
        database.close()
    assert wal.exists()
    with pytest.raises(StorageError, match=r"lab\.db-wal holds the last writes of a database"):
        Database.open(path, create=True)
    assert not path.exists()
    wal.unlink()
    with Database.open(path, create=True) as database:
        assert sum(1 for _ in database.trials()) == 0


def test_the_draft_of_a_killed_process_goes_with_the_next_sweep(tmp_path):
    path = tmp_path / "lab.db"
    script = """
import os, signal, sys
from attn_tune.db import Database
os.link = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
Database.open(sys.argv[1], create=True)
"""
    killed = subprocess.run([sys.executable, "-c", script, str(path)], timeout=300, check=False)
    assert killed.returncode == -signal.SIGKILL
    (draft,) = tmp_path.iterdir()
    # Young, it may be of a process that still runs.
    Database.open(path, create=True).close()
    assert draft.exists()
    made = draft.stat().st_mtime - 2 * connections.OLD_DRAFT_S
    own = tmp_path / f".{path.name}.notes.new"
    own.touch()
    for file in (draft, own):
        os.utime(file, (made, made))
    Database.open(path).close()
    assert not draft.exists()
    assert own.exists()


def test_another_working_directory_is_no_loss(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Database.open("lab.db", create=True) as database:
        run = begin(database)
        monkeypatch.chdir("/")
        database.record(run, make_trial())


def test_every_transaction_reaches_the_disk(tmp_path):
    """Without it a power cut may take trials that were acknowledged."""
    with Database.open(tmp_path / "lab.db", create=True) as database:
        (mode,) = database._connection.execute("PRAGMA synchronous").fetchone()
    assert mode == 2  # FULL


def tables(path):
    with contextlib.closing(sqlite3.connect(path)) as raw:
        return [
            name
            for (name,) in raw.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            if not name.startswith(("_", "sqlite_"))
        ]


def test_garbage_collection_refuses_a_database_that_lacks_a_table(tmp_path):
    sound = tmp_path / "sound.db"
    with Database.open(sound, create=True) as database:
        run = begin(database)
        database.record(run, make_trial())
        database.end_run(run, "finished")
    for table in tables(sound):
        path = tmp_path / f"{table}.db"
        path.write_bytes(sound.read_bytes())
        with contextlib.closing(sqlite3.connect(path)) as raw:
            raw.execute(f"DROP TABLE {table}")
        with pytest.raises(IntegrityError, match="damaged.*" + table), Database.open(path) as lab:
            collect_garbage(lab)


def test_a_path_that_the_locale_cannot_say_is_opened(tmp_path):
    path = tmp_path / os.fsdecode(b"labor-\xfc.db")  # a name with a lone surrogate
    with Database.open(path, create=True):
        pass
    with Database.open(path, read_only=True) as database:
        assert database.describe().counts["trial"] == 0


@pytest.mark.parametrize("what", ["device", "kernel"])
def test_text_that_is_not_unicode_is_a_usage_error(tmp_path, what):
    bad = "name-\ud800"
    with Database.open(tmp_path / "lab.db", create=True) as database:
        run = begin(database)
        changes = {
            "device": {"device": Device(**{**DEVICE.identity, "variant": bad})},
            "kernel": {"kernel": f"flash_attention/{bad}"},
        }
        with pytest.raises(UsageError, match=r"cannot hold the text .*\\ud800"):
            database.record(run, make_trial(**changes[what]))
        database.record(run, make_trial())
        assert sum(1 for _ in database.trials()) == 1


def test_a_path_without_a_file_stays_without_data(tmp_path):
    with pytest.raises(NoDataError, match="no database"):
        Database.open(tmp_path / "lab.db")
