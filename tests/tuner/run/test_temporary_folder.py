"""Folders in memory: nothing is left of a process that was killed, and nothing is taken from one that lives."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from attn_tune.schema import StorageError
from attn_tune.tuner.run import temporary_folder as scratch
from attn_tune.tuner.run.executor import IsolatedExecutor
from attn_tune.tuner.run.temporary_folder import TemporaryFolder, remove_abandoned

PREFIX = "attn-tune-tpu-"
HOLDER = """
import sys, time
from pathlib import Path
from attn_tune.tuner.run.temporary_folder import TemporaryFolder

held = TemporaryFolder("attn-tune-tpu-", Path(sys.argv[1]))
(Path(held.path) / "dump.txt").write_text("text")
print(held.path, flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds a folder, and the folder."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_a_temporary_folder_is_empty_unshared_and_gone_with_close(tmp_path):
    with TemporaryFolder(PREFIX, tmp_path) as first, TemporaryFolder(PREFIX, tmp_path) as second:
        assert first.path != second.path
        assert list(Path(first.path).iterdir()) == []
        (Path(first.path) / "dump.txt").write_text("text")
    assert list(tmp_path.iterdir()) == []
    first.close()


def test_a_folder_of_a_killed_process_is_removed_by_the_next_one(holder, tmp_path):
    process, folder = holder
    assert (folder / "dump.txt").exists()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert folder.exists()
    with TemporaryFolder(PREFIX, tmp_path) as mine:
        assert list(tmp_path.iterdir()) == [Path(mine.path)]


def test_a_folder_of_a_living_process_stays(holder, tmp_path):
    _, folder = holder
    with TemporaryFolder(PREFIX, tmp_path):
        assert (folder / "dump.txt").exists()
    remove_abandoned(PREFIX, tmp_path)
    assert (folder / "dump.txt").exists()


def test_other_files_and_folders_stay(tmp_path):
    (tmp_path / "attn-tune-tpu-note.txt").write_text("text")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "attn-tune-tpu-link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "others").mkdir()
    remove_abandoned(PREFIX, tmp_path)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_folder_that_was_taken_for_an_abandoned_one_is_made_again(tmp_path, monkeypatch):
    made, real = [], scratch.tempfile.mkdtemp

    def taken(**kwargs):
        made.append(real(**kwargs))
        if len(made) == 1:
            remove_abandoned(PREFIX, tmp_path)
        return made[-1]

    monkeypatch.setattr(scratch.tempfile, "mkdtemp", taken)
    with TemporaryFolder(PREFIX, tmp_path) as mine:
        assert len(made) == 2
        assert mine.path == made[1]
        assert Path(mine.path).is_dir()


def test_a_temporary_folder_without_locks_works_and_removes_nothing(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with TemporaryFolder(PREFIX, tmp_path) as first, TemporaryFolder(PREFIX, tmp_path) as second:
        assert os.path.isdir(first.path)
        assert os.path.isdir(second.path)
    assert list(tmp_path.iterdir()) == []


def test_many_at_once_never_take_each_others(tmp_path):
    failures = []

    def work():
        for _ in range(50):
            with TemporaryFolder(PREFIX, tmp_path) as mine:
                path = Path(mine.path) / "dump.txt"
                path.write_text("text")
                if not path.exists():
                    failures.append(path)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert list(tmp_path.iterdir()) == []


def test_no_temporary_directory_is_a_storage_error(tmp_path, monkeypatch):
    def refuse():
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp', '/var/tmp']")

    monkeypatch.setattr(scratch.tempfile, "gettempdir", refuse)
    with pytest.raises(StorageError, match=r"no temporary folder can be made: No usable.*TMPDIR"):
        TemporaryFolder(PREFIX)
    with pytest.raises(StorageError, match="No such file or directory"):
        TemporaryFolder(PREFIX, tmp_path / "nowhere")


def test_a_worker_folder_of_a_killed_sweep_goes_with_the_next_sweep(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(tmp_path))
    program = (
        "import os, signal\n"
        "from attn_tune.tuner.run.executor import IsolatedExecutor\n"
        "executor = IsolatedExecutor()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environ = os.environ | {"TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environ, check=False)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith("attn-tune-worker-")
    with IsolatedExecutor():
        (own,) = tmp_path.iterdir()
        assert own.name.startswith("attn-tune-worker-")
        assert own != left
    assert list(tmp_path.iterdir()) == []
