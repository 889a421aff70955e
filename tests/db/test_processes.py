"""Several processes on one database: killed, competing, reading while another writes."""

import os
import random
import signal
import struct
import subprocess
import sys
import time
import traceback

import pytest

from attn_tune.db import Database, export_pack, import_pack
from attn_tune.db.store import connection
from attn_tune.db.store.schema import SCHEMA_VERSION
from attn_tune.schema import StorageError
from tests.db.facts import begin, make_trial
from tests.patience import PATIENCE_S

# ``make soak`` has thousands.
KILLS = 8


@pytest.fixture(autouse=True)
def patient_databases(monkeypatch):
    """A process that holds the database may get no time for a while; the others wait. Children inherit it."""
    monkeypatch.setattr(connection, "BUSY_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(connection, "WRITE_PATIENCE_S", PATIENCE_S)


def spawn(work, *args):
    """Forks ``work(say, *args)``; ``say(number)`` sends a number. Returns the pid and the pipe's read end."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write_end)
        return pid, read_end
    status = 1
    try:
        os.close(read_end)
        work(lambda number: os.write(write_end, struct.pack("<q", number)), *args)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def hear(read_end, count):
    """The bytes of the first ``count`` numbers that the process wrote, or of fewer if it ended."""
    data = b""
    while len(data) < 8 * count and (chunk := os.read(read_end, 8 * count - len(data))):
        data += chunk
    return data


def finish(pid, read_end, data=b""):
    """The numbers that the process wrote, those in ``data`` first, and its exit code."""
    while chunk := os.read(read_end, 1 << 16):
        data += chunk
    os.close(read_end)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    # A kill may cut the last message short; then it does not count.
    return [n for (n,) in struct.iter_unpack("<q", data[: len(data) // 8 * 8])], status


def write_forever(say, path, pack, first):
    with Database.open(path, create=True) as database:
        run = begin(database)
        for i in range(first, first + 10**6):
            database.record(run, make_trial({"i": i}, is_heuristic=i % 7 == 0))
            say(i)
            if i % 64 == 63:
                database.rebuild_decisions()
                import_pack(database, pack, policy="replace")


def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path):
    with Database.open(tmp_path / "seed.db", create=True) as database:
        database.record(begin(database), make_trial())
        export_pack(database, tmp_path / "pack", name="seed", version="1", ungated="a test")
    rng = random.Random(0)
    said: dict[str, set[int]] = {}
    kills: dict[str, int] = {}
    for kill in range(KILLS):
        # Some die while the database is being made, most while it is written.
        path = tmp_path / f"lab-{kill % 3 if kill % 5 else kill}.db"
        pid, pipe = spawn(write_forever, path, tmp_path / "pack", kill * 10**6)
        # However long a busy machine takes to begin.
        heard = hear(pipe, rng.randint(2, 80)) if kill % 5 else b""
        time.sleep(rng.uniform(0, 0.01 if kill % 5 else 0.25))
        os.kill(pid, signal.SIGKILL)
        acknowledged, status = finish(pid, pipe, heard)
        assert status == -signal.SIGKILL
        said.setdefault(path.name, set()).update(acknowledged)
        kills[path.name] = kills.get(path.name, 0) + 1
        if not path.exists():
            assert not acknowledged
            continue
        with Database.open(path) as database:
            stored = {t.config["i"] for t in database.trials()}
            assert said[path.name] <= stored
            # At most the one that was being acknowledged is there without a word.
            assert len(stored) - len(said[path.name]) <= kills[path.name]
            assert database.integrity_check() == ()
            assert database.status().state in ("interrupted", "none")
    assert sum(map(len, said.values())) > KILLS


def test_a_second_writer_gets_the_name_of_the_first(tmp_path):
    path = tmp_path / "lab.db"

    def try_to_write(say):
        with Database.open(path) as other, pytest.raises(StorageError) as error:
            begin(other)
        assert f"process {os.getppid()} on " in str(error.value)

    def write(say):
        with Database.open(path) as other:
            other.record(begin(other), make_trial())

    with Database.open(path, create=True) as database:
        run = begin(database)
        assert finish(*spawn(try_to_write)) == ([], 0)
        second = begin(database)
        database.end_run(run, "finished")
        assert finish(*spawn(try_to_write)) == ([], 0)
        database.end_run(second, "finished")
        assert finish(*spawn(write)) == ([], 0)
        assert sum(1 for _ in database.trials()) == 1


def test_many_at_once_make_one_database(tmp_path):
    path = tmp_path / "new" / "lab.db"

    def make(say):
        with Database.open(path, create=True) as database:
            say(database.describe().schema_version)

    results = [finish(*child) for child in [spawn(make) for _ in range(6)]]
    assert results == [([SCHEMA_VERSION], 0)] * 6
    assert [p.name for p in path.parent.iterdir()] == ["lab.db"]
    with Database.open(path) as database:
        database.record(begin(database), make_trial())
        assert database.integrity_check() == ()


def test_many_at_once_get_one_lock(tmp_path):
    """Each counts how many hold the lock while it does; none ever sees a second."""
    path = tmp_path / "lab.db"
    Database.open(path, create=True).close()

    def compete(say):
        wins = 0
        deadline = time.monotonic() + PATIENCE_S
        while wins < 5 and time.monotonic() < deadline:
            try:
                with Database.open(path) as database:
                    run = begin(database)
                    held = database.frame("runs")["status"].tolist().count("running")
                    database.record(run, make_trial())
                    database.end_run(run, "finished")
                    say(held)
                    wins += 1
            except StorageError as error:
                if "being written by" not in str(error):
                    raise
                time.sleep(0.002)

    children = [spawn(compete) for _ in range(4)]
    results = [finish(*child) for child in children]
    assert results == [([1] * 5, 0)] * 4


def test_a_dead_writers_lock_is_taken_over(tmp_path):
    path = tmp_path / "lab.db"

    def die(say):
        database = Database.open(path, create=True)
        database.record(begin(database), make_trial())
        os._exit(0)

    assert finish(*spawn(die)) == ([], 0)
    with Database.open(path) as database:
        assert database.status().state == "interrupted"
        begin(database)
        assert database.frame("runs")["status"].tolist() == ["interrupted", "running"]


def test_a_writer_that_is_stopped_keeps_the_lock_until_it_is_killed(tmp_path):
    path = tmp_path / "lab.db"

    def write(say):
        database = Database.open(path, create=True)
        begin(database)
        say(0)
        os.kill(os.getpid(), signal.SIGSTOP)

    pid, pipe = spawn(write)
    hear(pipe, 1)
    os.waitpid(pid, os.WUNTRACED)
    with Database.open(path) as database:
        assert database.status().running
        with pytest.raises(StorageError, match=f"by process {pid} on "):
            begin(database)
        os.kill(pid, signal.SIGKILL)
        assert finish(pid, pipe)[1] == -signal.SIGKILL
        assert not database.status().running
        begin(database)


def test_readers_and_rebuilders_run_beside_a_writer(tmp_path):
    path = tmp_path / "lab.db"
    Database.open(path, create=True).close()

    def write(say):
        with Database.open(path) as database:
            run = begin(database)
            for i in range(300):
                database.record(run, make_trial({"i": i}))
                say(i)
            database.end_run(run, "finished")

    def rebuild(say):
        with Database.open(path) as database:
            for _ in range(5):
                database.rebuild_decisions()

    def read(say):
        seen = 0
        with Database.open(path, read_only=True) as database:
            while database.status().state != "finished":
                found = [t.config["i"] for t in database.trials()]
                assert found == [*range(len(found))]
                assert len(found) >= seen
                seen = len(found)
                database.frame("failures")
        say(seen)

    children = [spawn(work) for work in (write, rebuild, read, read)]
    results = [finish(*child) for child in children]
    assert [status for _, status in results] == [0, 0, 0, 0]
    assert results[0][0] == [*range(300)]


def test_a_reader_of_another_process_leaves_the_log_of_a_writer_that_also_read(tmp_path):
    """Closing a descriptor of the file would drop the writer's locks; another process then deletes the log."""
    path = tmp_path / "lab.db"
    log = path.with_name(path.name + "-wal")
    query = "SELECT count(*) FROM trial"
    read = f"import sqlite3; c = sqlite3.connect({str(path)!r}); print(*c.execute({query!r}).fetchone()); c.close()"

    def seen():
        return int(subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True).stdout)

    with Database.open(path, create=True) as database:
        run = begin(database)
        database.record(run, make_trial({"block_q": 16}))
        with Database.open(path, read_only=True) as reader:
            assert len(list(reader.trials())) == 1
        before = log.stat().st_ino
        assert seen() == 1
        assert log.stat().st_ino == before
        database.record(run, make_trial({"block_q": 32}))
        assert seen() == 2


def test_a_database_with_two_names_has_one_lock(tmp_path):
    alias = tmp_path / "alias.db"
    with Database.open(tmp_path / "lab.db", create=True) as database:
        begin(database)
        alias.symlink_to("lab.db")
        with Database.open(alias) as other, pytest.raises(StorageError, match=f"process {os.getpid()} on"):
            begin(other)


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("text")
    (tmp_path / ".lab.db.lock").symlink_to(precious)
    with (
        Database.open(tmp_path / "lab.db", create=True) as database,
        pytest.raises(StorageError, match="cannot be used"),
    ):
        begin(database)
    assert precious.read_text() == "text"


def test_a_forked_child_does_not_keep_the_lock_of_its_dead_parent(tmp_path):
    path = tmp_path / "lab.db"

    def die(say):
        database = Database.open(path, create=True)
        begin(database)
        if child := os.fork():
            say(child)
            os._exit(0)
        signal.pause()

    pid, read_end = spawn(die)
    (child,) = struct.unpack("<q", hear(read_end, 1))
    try:
        os.waitpid(pid, 0)
        with Database.open(path) as database:
            begin(database)
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(read_end)
