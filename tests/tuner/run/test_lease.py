"""Leases between real processes: one holder, named to the others, and none once it is gone."""

import os
import signal
import subprocess
import sys

import pytest

from attn_tune.schema.errors import StorageError
from attn_tune.tuner.run.executor import Interrupted
from attn_tune.tuner.run.fleet.lease import Lease, Presence, lease_folder, leased
from tests.patience import PATIENCE_S

HOLDER = """
import subprocess, sys, time
from pathlib import Path
from attn_tune.tuner.run.fleet.lease import leased
with leased([("GPU-1", "GPU 0")], folder=Path(sys.argv[1])):
    # A worker process must not keep the lease when the sweep is gone.
    worker = subprocess.Popen(["sleep", "600"])
    print(worker.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("leases")


@pytest.fixture(scope="module")
def holder(folder):
    """A process that holds ``GPU-1``, with a child of its own."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, folder], stdout=subprocess.PIPE, text=True)
    worker = int(process.stdout.readline())
    yield process
    process.kill()
    process.wait()
    process.stdout.close()
    os.kill(worker, signal.SIGKILL)


def test_a_lease_is_refused_with_its_holders_name(holder, folder):
    words = f"GPU 0 is in use by process {holder.pid} since "
    with pytest.raises(StorageError, match=words) as caught:
        leased([("GPU-1", "GPU 0")], folder=folder).__enter__()
    assert caught.value.exit_code == 4
    with leased([("GPU-2", "GPU 1")], folder=folder):
        pass


def test_waiting_can_be_interrupted(holder, folder):
    answers = [False, True]
    with (
        pytest.raises(Interrupted),
        leased([("GPU-1", "GPU 0")], wait=True, interrupt=lambda: answers.pop(0), folder=folder),
    ):
        raise AssertionError("it is held")
    assert not answers


def test_all_or_none(holder, folder):
    with (
        pytest.raises(StorageError),
        leased([("GPU-0", "GPU 0"), ("GPU-1", "GPU 1")], folder=folder),
    ):
        raise AssertionError("one is held")
    with Lease("GPU-0", folder) as free:
        assert free.take() == ""


def test_a_lease_ends_with_its_process_even_if_a_child_lives_on(holder, folder):
    said = []

    def say(text):
        said.append(text)
        holder.kill()

    with leased([("GPU-1", "GPU 0")], wait=True, say=say, folder=folder):
        assert holder.wait(PATIENCE_S) == -signal.SIGKILL
    assert len(said) == 1
    assert str(holder.pid) in said[0]


def test_a_released_lease_is_free_again_and_names_no_holder(tmp_path):
    one, two = Lease("GPU-0", tmp_path), Lease("GPU-0", tmp_path)
    assert one.take() == ""
    assert f"process {os.getpid()}" in two.take()
    one.release()
    assert one.path.read_text() == ""
    with two:
        assert two.take() == ""


def test_sweeps_beside_one_another_see_each_other_in_any_order(tmp_path):
    with Presence("cpu-sweeps", tmp_path) as first:
        assert first.is_alone
        with Presence("cpu-sweeps", tmp_path) as second:
            for _ in range(2):
                assert not first.is_alone
                assert not second.is_alone
        assert first.is_alone


def test_every_user_may_take_a_lease(tmp_path):
    folder = tmp_path / "leases"
    mask = os.umask(0o077)
    try:
        with leased([("GPU-0", "GPU 0")], folder=folder):
            pass
    finally:
        os.umask(mask)
    assert folder.stat().st_mode & 0o7777 == 0o1777
    assert (folder / "GPU-0.lock").stat().st_mode & 0o777 == 0o666


def test_the_folder_is_the_same_for_every_session(monkeypatch, tmp_path):
    here = lease_folder()
    for name in ("XDG_RUNTIME_DIR", "TMPDIR", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    assert lease_folder() == here


def test_a_folder_that_cannot_be_made_is_an_error_that_says_what_to_do(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(StorageError, match="--lease-folder"),
        leased([("GPU-0", "GPU 0")], folder=tmp_path / "file" / "leases"),
    ):
        raise AssertionError("it cannot be made")


def test_a_lease_is_held_where_its_text_cannot_be_written(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    lease, other = Lease("gpu", tmp_path), Lease("gpu", tmp_path)
    assert lease.take() == ""
    assert other.take() == "another process"
    lease.release()


def test_a_lease_is_held_by_a_command_whose_words_are_no_unicode(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["attn-tune", "sweep", "--db", "labor-\udcfc.db"])
    lease, other = Lease("gpu", tmp_path), Lease("gpu", tmp_path)
    assert lease.take() == ""
    assert "labor-?.db" in other.take()
    lease.release()
