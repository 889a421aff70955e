"""The spool of misses: whole lines from many processes, bounded, and never a reason for a job to fail."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attn_tune.runtime import miss_spool, misses
from attn_tune.runtime.lookup.answer import Answer, Rung
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
SIGNATURE = "flash_attention/v1 b=1 t=64 s=64 n=1 k=1 h=16 v=16 dtype=float32"


def answer(number=0):
    return Answer(
        op="flash_attention",
        direction="fwd",
        signature=f"{SIGNATURE} left={number}",
        device="cpu-x86_64",
        kernel="xla",
        config={},
        rung=Rung.UNTUNED,
    )


def line(number=0, **changes):
    values = {
        "op": "flash_attention",
        "direction": "fwd",
        "signature": f"{SIGNATURE} left={number}",
        "device": "cpu-x86_64",
        "nearest": "no pack holds rows",
        "count": 1,
        "process": "1-aa",
        "time": 1,
    }
    return miss_spool.SpoolLine(**values | changes)


@pytest.fixture
def recording(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTN_TUNE_ON_MISS", f"record:{tmp_path / 'spool'}")
    monkeypatch.setattr(misses, "_mode", misses.MissMode.RECORD)
    misses.reset_stats()
    yield tmp_path / "spool"
    misses.reset_stats()


def everything(folder):
    return [one for path in miss_spool.spool_files(folder) for one in miss_spool.read_lines(path)]


def test_a_key_is_written_at_powers_of_two(recording):
    for _ in range(9):
        misses.count(answer(), lambda: "t 64 vs 128")
    found = everything(recording)
    assert [one.count for one in found] == [1, 2, 4, 8]
    assert [one.nearest for one in found] == ["t 64 vs 128", "", "", ""]
    assert len({one.process for one in found}) == 1
    assert misses.stats().unrecorded_misses == 0


def test_modes_but_record_write_nothing(recording, monkeypatch):
    for mode in (misses.MissMode.UNTUNED, misses.MissMode.WARN):
        monkeypatch.setattr(misses, "_mode", mode)
        misses.count(answer(), lambda: "")
    assert not recording.exists()


def test_more_keys_than_are_remembered_write_no_more_lines(recording, monkeypatch):
    monkeypatch.setattr(misses, "MAX_KEYS", 3)
    for number in range(10):
        misses.count(answer(number), lambda: "")
    assert len(everything(recording)) == 3
    assert misses.stats().forgotten_misses == 7


def test_a_child_counts_for_itself(recording):
    misses.count(answer(), lambda: "")
    child = os.fork()
    if child == 0:
        misses.count(answer(), lambda: "")
        os._exit(0 if misses.stats().misses[0].count == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert [one.count for one in everything(recording)] == [1, 1]
    assert len({one.process for one in everything(recording)}) == 2


def test_a_lock_held_in_another_thread_does_not_outlive_a_fork(recording):
    with misses._lock:
        child = os.fork()
        if child == 0:
            misses.count(answer(), lambda: "")
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert len(everything(recording)) == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EACCES])
def test_misses_that_cannot_be_written_are_counted(recording, monkeypatch, number):
    def fail(*_):
        raise OSError(number, "no")

    monkeypatch.setattr(os, "write", fail)
    misses.count(answer(), lambda: "")
    assert misses.stats().unrecorded_misses == 1


def test_a_file_in_place_of_the_folder_is_counted_and_logged_once(recording, caplog):
    recording.write_text("not a folder")
    misses.count(answer(), lambda: "")
    misses.count(answer(), lambda: "")
    assert misses.stats().unrecorded_misses == 2
    (logged,) = caplog.messages
    assert f"misses cannot be recorded in {recording}" in logged


def test_a_spool_whose_name_no_file_can_have_is_none(tmp_path):
    assert not miss_spool.append(tmp_path / "\ud800", line())


def test_a_line_that_a_full_disk_cut_short_is_the_only_one_lost(tmp_path, monkeypatch):
    real = os.write
    assert miss_spool.append(tmp_path, line(1))
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[: len(data) // 2]))
    assert not miss_spool.append(tmp_path, line(2))
    monkeypatch.setattr(os, "write", real)
    assert miss_spool.append(tmp_path, line(3))
    good, bad, last = everything(tmp_path)
    assert (good, last) == (line(1), line(3))
    assert isinstance(bad, miss_spool.BadLine)
    assert "cut short" in bad.reason


def test_a_link_is_not_followed(tmp_path):
    target = tmp_path / "precious"
    target.write_text("kept")
    assert miss_spool.append(tmp_path / "spool", line())
    (path,) = miss_spool.spool_files(tmp_path / "spool")
    path.unlink()
    path.symlink_to(target)
    assert not miss_spool.append(tmp_path / "spool", line())
    assert target.read_text() == "kept"


def test_a_user_without_a_home_leaves_nothing_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    for name in ("ATTN_TUNE_ON_MISS", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert not miss_spool.append(miss_spool.spool_folder(), line())
    assert list(tmp_path.iterdir()) == []


def test_the_spool_is_bounded_and_keeps_the_newest(tmp_path, monkeypatch):
    monkeypatch.setattr(miss_spool, "MAX_BYTES", 1000)
    for number in range(200):
        assert miss_spool.append(tmp_path, line(number))
    files = miss_spool.spool_files(tmp_path)
    assert len(files) == 1 + miss_spool.KEEP
    assert all(path.stat().st_size <= 1000 for path in files)
    numbers = [int(one.signature.rpartition("=")[2]) for one in everything(tmp_path)]
    assert numbers == list(range(numbers[0], 200))


BAD = [
    (b"{", "cut short"),
    (b"[1]", "not a JSON object"),
    (b'{"v":2}', "version 2"),
    (b'{"v":1,"op":3}', "'op' must be a text"),
    (b"\xff\xfe\x00", "not JSON"),
    (b"[" * 3000, "not JSON"),
    (b"x" * 10_000, "longer than"),
]


@pytest.mark.parametrize(("raw", "reason"), BAD, ids=lambda v: str(v)[:12])
def test_a_bad_line_is_reported_and_the_rest_is_read(tmp_path, raw, reason):
    assert miss_spool.append(tmp_path, line(1))
    (path,) = miss_spool.spool_files(tmp_path)
    with path.open("ab") as file:
        file.write(raw + b"\n")
    assert miss_spool.append(tmp_path, line(2))
    first, bad, last = everything(tmp_path)
    assert (first, last) == (line(1), line(2))
    assert reason in bad.reason
    assert str(bad).startswith(f"{path}:3: ")


@pytest.mark.parametrize("count", [-1, True, "1", 1 << 80, 1.5, None])
def test_a_count_must_be_a_natural_number(tmp_path, count):
    assert miss_spool.append(tmp_path, line(1))
    (path,) = miss_spool.spool_files(tmp_path)
    data = json.loads(path.read_text()) | {"count": count}
    path.write_text(json.dumps(data) + "\n")
    (bad,) = everything(tmp_path)
    assert "'count' must be a natural number" in bad.reason


WRITER = """
import sys, time
from pathlib import Path
from attn_tune.runtime import miss_spool
miss_spool.MAX_BYTES = 90_000
for number in range(150):
    line = miss_spool.SpoolLine(
        op="flash_attention", direction="fwd", signature=f"s {number}", device="d", nearest="n" * 100,
        count=1, process=sys.argv[2], time=0)
    # Refused only while a process that moves the full file aside gets no time to do so.
    while not miss_spool.append(Path(sys.argv[1]), line):
        time.sleep(0.01)
"""


def test_many_processes_write_whole_lines(tmp_path):
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(number)],
            cwd=ROOT,
        )
        for number in range(8)
    ]
    assert [process.wait(PATIENCE_S) for process in running] == [0] * 8
    found = everything(tmp_path)
    assert not [one for one in found if isinstance(one, miss_spool.BadLine)]
    # The file was moved aside meanwhile, by the process that came first.
    assert len(miss_spool.spool_files(tmp_path)) > 1
    assert len({(one.process, one.signature) for one in found}) == len(found) == 8 * 150
