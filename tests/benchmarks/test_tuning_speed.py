"""The benchmark of tuning speed: its processes, those that crash or hang, and a real sweep."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tuning_speed
from tuning_record import Task
from tuning_sweep import signature_text

from tests.patience import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[2]
HANG_S = 0.5


@pytest.fixture
def late_limit(monkeypatch):
    """Lets the limit of a process begin once a file is there, which says that the process has begun to hang."""

    def late_limit(ready: Path) -> None:
        class Process(subprocess.Popen):
            def wait(self, timeout=None):
                until(lambda: ready.exists() or self.poll() is not None)
                return super().wait(timeout)

        monkeypatch.setattr(tuning_speed.subprocess, "Popen", Process)

    return late_limit


def python(program):
    return [sys.executable, "-c", program]


def test_the_end_of_a_process_has_a_reason(tmp_path):
    def ended(program):
        return tuning_speed.spawn(python(program), dict(os.environ), PATIENCE_S, tmp_path / "log")

    assert ended("print('fine')").reason == ""
    assert ended("raise SystemExit('no such op')").reason == "exit status 1: no such op"
    died = ended("import os, signal; print('here'); os.kill(os.getpid(), signal.SIGKILL)")
    assert died.reason.startswith("killed by SIGKILL")


def test_a_process_that_hangs_is_ended_with_its_children(tmp_path, monkeypatch, late_limit):
    monkeypatch.setattr(tuning_speed, "_STOP_GRACE_S", HANG_S)
    pid = tmp_path / "pid"
    late_limit(pid)
    # Neither listens to a polite request.
    program = (
        "import pathlib, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"written = pathlib.Path({str(pid) + '.new'!r})\n"
        "written.write_text(str(child.pid))\n"
        f"written.rename({str(pid)!r})\n"
        "time.sleep(600)\n"
    )
    ended = tuning_speed.spawn(python(program), dict(os.environ), HANG_S, tmp_path / "log")
    assert ended.reason == "no end within 0.5 s"
    assert ended.wall_s >= HANG_S
    until(lambda: gone(int(pid.read_text())))


def gone(pid):
    """Whether ``pid`` has ended; one that no process waited for has ended too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


TUNER = """
import os, signal, sys, time
from pathlib import Path
from tuning_record import Record, Step
record = Record(steps=(Step(direction="fwd", start_s=1.0, end_s=3.0, statuses={"ok": 4}),))
record.write(Path(sys.argv[sys.argv.index("--record") + 1]))
assert not Path(os.environ["TRITON_CACHE_DIR"]).exists()
assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
"""


@pytest.mark.parametrize(
    ("then", "why"),
    [
        ("", ""),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
        ("Path(__file__).with_name('ready').touch(); time.sleep(600)", "no end within 0.5 s"),
    ],
    ids=["ends", "crashes", "hangs"],
)
def test_finished_steps_of_a_tuner_are_kept_when_it_fails_later(monkeypatch, tmp_path, late_limit, then, why):
    hangs = "sleep" in then
    if hangs:
        late_limit(tmp_path / "ready")
    program = tmp_path / "contenders.py"
    program.write_text(TUNER + then)
    monkeypatch.setattr(tuning_speed, "_CONTENDERS", program)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/elsewhere")
    job = tuning_speed.Job(tuner="x")
    limit_s = HANG_S if hangs else PATIENCE_S
    _, rows = tuning_speed.run(job, Task(), limit_s, tmp_path / "logs")
    assert (rows[0].configs, rows[0].rate) == (4, 2.0)
    assert [row.failed[: len(why)] for row in rows[1:]] == ([why] if why else [])
    assert (tmp_path / "logs" / "x.log").exists()


@pytest.mark.parametrize("text", ["4x4096x16", "4x4096x16xH", "", "4,4096,16,128"])
def test_odd_shapes_are_refused(text):
    with pytest.raises(tuning_speed.argparse.ArgumentTypeError, match="BxTxNxH"):
        tuning_speed.parse_shape(text)


def test_the_task_is_written_as_the_sweep_reads_it():
    args = tuning_speed._arguments(["--kv-heads", "4", "--full"])
    assert signature_text(args.task) == ("flash_attention/v1 b=4 t=4096 s=4096 n=16 k=4 h=128 v=128 dtype=bfloat16")
    causal = replace(args.task, causal=True)
    assert signature_text(causal).endswith("causal=1")
    options = [job.options for job in tuning_speed.jobs("attn-tune", args)]
    assert [o[o.index("--direction") + 1 :][::2] for o in options] == [
        ("fwd", "256"),
        ("bwd", "100"),
    ]


@pytest.mark.exhaustive  # a sweep, of which only the report is new
def test_a_real_sweep_and_peers_that_cannot_run_here(monkeypatch, capsys, tmp_path):
    """On the CPU: a backward in two launches, one of them with a config that is refused."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "planted"))
    monkeypatch.setattr(tuning_speed, "jobs", only_backward(tuning_speed.jobs))
    out = tmp_path / "report.json"
    code = tuning_speed.main(
        [
            *("--kernel", "planted_backward", "--shape", "1x16x1x16", "--dtype", "float32"),
            *("--tuner", "attn-tune", "--tuner", "tokamax-triton", "--out", str(out)),
            *("--max-trials-bwd", "1", "--limit", str(PATIENCE_S)),
        ]
    )
    assert code == 0
    report = json.loads(out.read_text())
    ours, peer = report["rows"]
    # The untuned config whole, and each launch alone; the best of both is the untuned one again.
    assert ours["detail"]["configs_by_part"] == {"whole": 1, "dq": 1, "dkv": 1}
    assert ours["detail"]["finals"] == 1
    assert ours["statuses"] == {"ok": 3}
    assert ours["detail"]["refused_before_compiling"] == 1
    assert 0 < ours["wall_s"] < ours["wall_with_start_s"]
    assert ours["configs_per_s"] == pytest.approx(3 / ours["wall_s"])
    assert {"compile", "validate", "measure"} <= set(ours["phases_s"])
    assert sum(ours["phases_s"].values()) < ours["wall_s"]
    assert ours["gpu_idle"] is None
    assert report["device"]["platform"] == "cpu"
    assert report["versions"]["jax"]
    assert peer["failed"] in ("tokamax is not installed", "needs a GPU; jax found cpu")
    assert "| attn-tune | bwd | 3 |" in capsys.readouterr().out


def only_backward(jobs):
    return lambda tuner, args: [job for job in jobs(tuner, args) if "fwd" not in job.options]
