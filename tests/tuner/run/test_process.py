"""Reasons for a worker's death, on real processes that need no device."""

import os
import signal
import time
from pathlib import Path

import pytest

from attn_tune.schema.trial import Status
from attn_tune.tuner.run import process as process_module
from attn_tune.tuner.run.process import WorkerDied, WorkerProcess, WorkerTooBig
from tests.patience import PATIENCE_S

# A worker with nothing to do: it ends only when the parent closes its socket.
IDLE = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).recv(1)"


@pytest.fixture
def idle_worker(monkeypatch, tmp_path):
    """A function that starts an idle worker with the given variables."""
    (tmp_path / "idle_worker.py").write_text(IDLE)
    monkeypatch.syspath_prepend(tmp_path)
    started = []

    def start(memory_gib: float | None = None) -> WorkerProcess:
        started.append(WorkerProcess(module="idle_worker", memory_gib=memory_gib))
        return started[-1]

    yield start
    for worker in started:
        worker.kill()


def death_of(worker: WorkerProcess) -> WorkerDied:
    with pytest.raises(WorkerDied) as caught:
        worker.receive(PATIENCE_S, lambda: False)
    return caught.value


@pytest.mark.parametrize(
    ("counts", "status", "words"),
    [
        ((5, 6), Status.OUT_OF_RESOURCES, "the kernel's OOM killer was at work"),
        ((5, 5), Status.CRASHED, "from outside, perhaps by the kernel's OOM killer"),
        ((None, None), Status.CRASHED, "from outside"),
    ],
)
def test_the_oom_killer_is_named_only_where_its_count_rose(monkeypatch, idle_worker, counts, status, words):
    answers = list(counts)
    monkeypatch.setattr(process_module, "oom_kills", lambda: answers.pop(0))
    worker = idle_worker()
    os.kill(worker.pid, signal.SIGKILL)
    death = death_of(worker)
    assert death.status is status
    assert words in str(death)
    assert death.by_outsider


def test_our_own_kill_is_not_reported_as_anothers(idle_worker):
    worker = idle_worker()
    worker.kill()
    assert not death_of(worker).by_outsider


def test_a_signal_is_named(idle_worker):
    worker = idle_worker()
    os.kill(worker.pid, signal.SIGSEGV)
    death = death_of(worker)
    assert "killed by SIGSEGV" in str(death)
    assert (death.status, death.by_outsider) == (Status.CRASHED, False)


def test_a_worker_above_its_limit_is_killed(idle_worker):
    worker = idle_worker(memory_gib=0.001)
    with pytest.raises(WorkerTooBig, match=r"host memory: 0\.\d GiB used, limit 0\.0 GiB") as caught:
        worker.receive(PATIENCE_S, lambda: False)
    assert caught.value.status is Status.OUT_OF_RESOURCES
    assert caught.value.used > caught.value.limit == int(0.001 * 2**30)
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)


RUNAWAY = """
import os, signal, subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True, env={}
)
print("child", child.pid, flush=True)
if DIES:
    os.kill(os.getpid(), signal.SIGSEGV)
signal.pause()
"""


@pytest.mark.parametrize("dies", [False, True], ids=["killed", "crashed"])
def test_a_child_with_no_environment_and_its_own_session_does_not_outlive_the_worker(monkeypatch, tmp_path, dies):
    (tmp_path / "runaway.py").write_text(RUNAWAY.replace("DIES", str(dies)))
    monkeypatch.syspath_prepend(tmp_path)
    worker = WorkerProcess(module="runaway")
    if dies:
        death_of(worker)
    end = time.monotonic() + 60
    while "child" not in worker.tail() and time.monotonic() < end:
        time.sleep(0.02)
    child = int(worker.tail().split("child ")[1].split()[0])
    worker.kill()
    while _lives(child) and time.monotonic() < end:
        time.sleep(0.02)
    assert not _lives(child)


def _lives(pid: int) -> bool:
    """False for a zombie too: who reaps it is the system's affair."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


CHATTER = """
import os, sys
for _ in range(4096):
    os.write(1, b"noise " * 1024)
print("last words", flush=True)
"""


def test_much_output_keeps_its_end(monkeypatch, tmp_path):
    (tmp_path / "chatter.py").write_text(CHATTER)
    monkeypatch.syspath_prepend(tmp_path)
    worker = WorkerProcess(module="chatter")
    death = death_of(worker)
    assert str(death).endswith("last words")
    assert len(str(death)) < 4096


def test_bytes_that_are_no_message_end_the_worker_and_not_the_sweep(monkeypatch, tmp_path):
    (tmp_path / "babbler.py").write_text("import os, sys\nos.write(int(sys.argv[1]), b'\\0\\0\\0\\4junk')\n" + IDLE)
    monkeypatch.syspath_prepend(tmp_path)
    worker = WorkerProcess(module="babbler")
    assert str(death_of(worker)).startswith("what it sent is no message (UnpicklingError")
