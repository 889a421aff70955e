"""Files that are refused stay as they were; others open wherever they lie."""

import contextlib
import os
import random
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from attn_tune.db import Database, merge_database
from attn_tune.db.store import connection as connections, filesystem
from attn_tune.db.store.schema import SCHEMA_VERSION
from attn_tune.schema import AttnTuneError, IntegrityError, NoDataError, StorageError
from tests.db.facts import begin, make_trial


def snapshot(folder):
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


@pytest.fixture
def path(tmp_path):
    """A sound database of some pages, closed."""
    path = tmp_path / "lab.db"
    with Database.open(path, create=True) as database:
        run = begin(database)
        for i in range(60):
            database.record(run, make_trial({"i": i}))
        database.end_run(run, "finished")
    return path


def foreign(path):
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA application_id = 7")
        other.execute("CREATE TABLE notes (body TEXT)")


def anonymous(path):
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE trial (body TEXT)")


def other_schema(path):
    with Database.open(path, create=True):
        pass
    with contextlib.closing(sqlite3.connect(path)) as raw:
        raw.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
        raw.execute("PRAGMA journal_mode = DELETE")


REFUSED = {
    "text": (lambda p: p.write_text("block_q,block_k\n" * 20), "not a SQLite database"),
    "short": (lambda p: p.write_bytes(b"SQLite format 3\0"), "not a SQLite database"),
    "foreign": (foreign, "another application"),
    "anonymous": (anonymous, "another application"),
    "other schema": (other_schema, "has schema 2, and this attn-tune knows 1"),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("options", [{}, {"create": True}, {"read_only": True}], ids=["write", "create", "read"])
def test_refused_files_are_not_touched(tmp_path, kind, options):
    make, message = REFUSED[kind]
    make(tmp_path / "file.db")
    before = snapshot(tmp_path)
    with pytest.raises(IntegrityError, match=message):
        Database.open(tmp_path / "file.db", **options)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("options", [{}, {"read_only": True}])
def test_a_database_is_only_made_when_asked(tmp_path, options):
    with pytest.raises(NoDataError, match="no database"):
        Database.open(tmp_path / "sub" / "lab.db", **options)
    assert not list(tmp_path.iterdir())


def test_a_folder_is_no_database(tmp_path):
    with pytest.raises(StorageError, match="folder"):
        Database.open(tmp_path, create=True)


@pytest.mark.parametrize("empty_file", [False, True])
def test_creation_leaves_one_file_and_its_parents(tmp_path, empty_file):
    path = tmp_path / "a b" / "c?#%" / "lab.db"
    if empty_file:  # as mktemp leaves it
        path.parent.mkdir(parents=True)
        path.touch()
    with Database.open(path, create=True) as database:
        assert database.describe().schema_version == SCHEMA_VERSION
    assert [p.name for p in path.parent.iterdir()] == ["lab.db"]
    with contextlib.closing(sqlite3.connect(path)) as raw:
        assert raw.execute("PRAGMA application_id").fetchone() == (0x41545455,)


def test_a_file_that_another_process_completes_meanwhile_is_not_truncated(path, monkeypatch):
    whole, size_of = path.read_bytes(), connections._size
    path.write_bytes(whole[: len(whole) // 2])

    def completed(path, suffix):
        path.write_bytes(whole)
        return size_of(path, suffix)

    monkeypatch.setattr(connections, "_size", completed)
    with Database.open(path) as database:
        assert database.describe().counts["trial"] == 60


@pytest.mark.parametrize("keep", [0.05, 0.3, 0.6, 0.95, 0.999])
def test_a_truncated_file_is_refused(path, keep):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    before = snapshot(path.parent)
    with pytest.raises(IntegrityError, match="truncated"):
        Database.open(path)
    assert snapshot(path.parent) == before


def test_garbage_inside_is_an_integrity_error_or_harmless(path):
    """Random damage behind the header: never another exception, never a lost row without a word."""
    good = path.read_bytes()
    with Database.open(path) as database:
        wanted = [repr(t) for t in database.trials()]
    rng = random.Random(0)
    noticed = 0
    for _ in range(60):
        bad = bytearray(good)
        start = rng.randrange(100, len(bad) - 600)
        bad[start : start + 600] = rng.randbytes(600)
        path.write_bytes(bad)
        try:
            with Database.open(path, read_only=True) as database:
                found = database.integrity_check()
                noticed += bool(found)
                assert found or [repr(t) for t in database.trials()] == wanted
        except IntegrityError:
            noticed += 1
    assert noticed > 5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("""config = '{"i":7777}'""", "it does not have its config_digest"),
        ("samples_ns = '[5]'", "it does not have its median_us, min_us, dispersion"),
        ("stage = 'wrong'", "'wrong' is not a valid Stage"),
    ],
)
def test_a_changed_trial_is_noticed(path, change, said):
    with contextlib.closing(sqlite3.connect(path)) as raw:
        raw.execute("DROP TRIGGER trial_refuses_update")
        raw.execute(f"UPDATE trial SET {change} WHERE id = 3")
        raw.commit()
    with Database.open(path, read_only=True) as database:
        (problem,) = database.integrity_check()
    assert problem == f"trial 3 was changed: {said}"


def test_readers_work_in_a_folder_they_cannot_write(path):
    """As an unprivileged user, where not even the side files of the write-ahead log can be made."""
    folder = Path(tempfile.mkdtemp())  # pytest's own folders are closed to other users
    try:
        shutil.copy(path, folder / "lab.db")
        (folder / "lab.db").chmod(0o444)
        folder.chmod(0o555)
        assert in_child(lambda: sum(1 for _ in open_reader(folder / "lab.db").trials())) == 60
        assert sorted(p.name for p in folder.iterdir()) == ["lab.db"]
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def open_reader(path):
    return Database.open(path, read_only=True)


def in_child(function):
    """Runs ``function`` in a fork without privileges; its result is a small number."""
    pid = os.fork()
    if pid == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            os._exit(function())
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(255)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_an_unwritable_database_is_an_error_with_the_reason(tmp_path):
    with pytest.raises(StorageError, match="cannot be used"):
        Database.open("/proc/attn-tune/lab.db", create=True)


def test_a_forked_child_cannot_write_through_its_parent(path):
    with Database.open(path) as database:

        def misuse():
            try:
                begin(database)
            except StorageError:
                return 7
            return 0

        assert in_child(misuse) == 7


MOUNTS = {
    "/": "ext4",
    "/home": "nfs4",
    "/home/local": "xfs",
    "/mnt/a b": "fuse.sshfs",
    "/mnt/portal": "fuse.portal",
}


@pytest.mark.parametrize(
    ("path", "network"),
    [
        ("/data/lab.db", False),
        ("/home/me/lab.db", True),
        ("/homework/lab.db", False),
        ("/home/local/lab.db", False),
        ("/mnt/a b/lab.db", True),
        ("/mnt/portal/lab.db", False),
    ],
)
def test_network_file_systems_are_known(monkeypatch, path, network):
    mounts = [SimpleNamespace(mountpoint=place, fstype=kind) for place, kind in MOUNTS.items()]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    assert filesystem.is_network(Path(path)) is network


def test_on_a_network_file_system_there_is_no_shared_memory(path, monkeypatch):
    monkeypatch.setattr(connections, "is_network", lambda _: True)
    with pytest.warns(UserWarning, match="network file system"):
        database = Database.open(path)
    with database:
        assert database.describe().journal_mode == "delete"
        database.record(begin(database), make_trial())
        assert not path.with_name("lab.db-wal").exists()
    monkeypatch.undo()
    with Database.open(path) as database:
        assert database.describe().journal_mode == "wal"
        assert sum(1 for _ in database.trials()) == 61


@pytest.mark.parametrize("options", [{}, {"read_only": True}], ids=["write", "read"])
def test_an_unfinished_log_on_a_network_is_refused(path, monkeypatch, options):
    """As another host that writes, or died, leaves it: its shared memory cannot be seen from here."""
    with Database.open(path) as database:
        begin(database)
        monkeypatch.setattr(connections, "is_network", lambda _: True)
        before = snapshot(path.parent)
        with pytest.raises(StorageError, match=r"write-ahead log.*network file system.*merge"):
            Database.open(path, **options)
        with pytest.raises(StorageError, match="network file system"):
            merge_database(database, path)
        assert snapshot(path.parent) == before


def test_a_finished_log_on_a_network_is_read_without_shared_memory(path, monkeypatch):
    monkeypatch.setattr(connections, "is_network", lambda _: True)
    with Database.open(path, read_only=True) as database:
        assert sum(1 for _ in database.trials()) == 60
        assert not path.with_name("lab.db-shm").exists()


def test_a_database_on_read_only_media_can_be_merged(path, tmp_path):
    """From where nothing can be written, even by its owner: as an image, or as somebody else."""
    folder = Path(tempfile.mkdtemp())
    try:
        shutil.copy(path, folder / "lab.db")
        folder.chmod(0o555)

        def merge():
            target = Path(tempfile.mkdtemp()) / "all.db"
            with Database.open(target, create=True) as database:
                count = merge_database(database, folder / "lab.db").trials
            shutil.rmtree(target.parent)
            return count

        assert in_child(merge) == 60
        assert [p.name for p in folder.iterdir()] == ["lab.db"]
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_every_error_has_a_type_of_this_package(tmp_path):
    """Random files under random options: a clean answer or one of attn-tune's errors, with one line."""
    rng = random.Random(1)
    for i in range(100):
        path = tmp_path / f"{i}.db"
        data = bytearray(rng.randbytes(rng.choice([0, 1, 99, 100, 4096])))
        if rng.random() < 0.7:
            data[:16] = b"SQLite format 3\0"
        if rng.random() < 0.7 and len(data) >= 100:
            data[68:72] = (0x41545455).to_bytes(4, "big")
            data[60:64] = SCHEMA_VERSION.to_bytes(4, "big")
        path.write_bytes(data)
        with pytest.raises(AttnTuneError) as error, Database.open(path) as database:
            list(database.trials())
        assert "\n" not in str(error.value)
