"""The command as a process: what it loads, and a sweep on a real worker that is interrupted and continues."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attn_tune.cli import app
from attn_tune.runtime.active import settings

ROOT = Path(__file__).resolve().parents[2]
# What takes time is proving: an op whose feature problems are few and small.
SIGNATURE = "merge_attention/v1 r=30 n=3 v=24 parts=3 dtype=float32"
PATIENCE_S = 900


def command(*words):
    return [sys.executable, "-m", "attn_tune", *map(str, words)]


@pytest.fixture
def environment(tmp_path):
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "XDG_DATA_HOME": str(tmp_path),
    }


@pytest.mark.parametrize("words", [["--help"], ["sweep", "--help"]], ids=" ".join)
def test_help_loads_nothing_heavy(environment, words):
    heavy = ("jax", "jaxlib", "numpy", "pandas", "triton", "sqlite_utils", "sqlite3")
    program = (
        "import sys; sys.argv[1:] = sys.argv[1:]\n"
        "from attn_tune.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        f"print([m for m in {heavy!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program, *words], env=environment, capture_output=True, text=True)
    assert done.stdout.lstrip().startswith("Usage: ")
    assert done.stderr.strip() == "[]"


def test_a_closed_pipe_is_no_traceback(environment):
    done = subprocess.run(
        f"{sys.executable} -m attn_tune grids | head -n 1",
        shell=True,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in done.stderr


# No worker after the first one starts: without the finals, which need a new one, a sweep cannot end by itself.
HOLD = """
import os, sys, time
if "attn_tune.tuner.work.worker" in sys.orig_argv:
    try:
        open(os.environ["FIRST_WORKER"], "x").close()
    except FileExistsError:
        time.sleep(3600)
"""


@pytest.mark.slow
def test_a_real_sweep_is_interrupted_and_continues(environment, monkeypatch, tmp_path):
    db = tmp_path / "lab.db"
    words = ("sweep", "-g", SIGNATURE, "-k", "merge_attention/xla", "-d", "fwd", "--db", db)
    words += ("--lease-folder", tmp_path / "leases")
    (tmp_path / "sitecustomize.py").write_text(HOLD)
    held = {"FIRST_WORKER": str(tmp_path / "first"), "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    process = subprocess.Popen(
        command(*words),
        env=environment | held,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(SIGNATURE):
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert "the same command continues" in out
    assert "Traceback" not in err

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    def answer(*words):
        monkeypatch.setattr(settings, "_current", None)
        done = CliRunner().invoke(app, [*map(str, words), "--json"], prog_name="attn-tune")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    assert answer("status", "--db", db)["state"] == "interrupted"
    finished = answer(*words)
    assert finished["ending"] == "finished"
    (decision,) = finished["decisions"]
    assert decision["median_ns"] > 0
    assert 0 < decision["worst_error"] <= 1
    assert answer(*words)["trials"] == 0
    pack = tmp_path / "packs" / "mine.atpack"
    pack.parent.mkdir()
    answer("export", pack, "--db", db, "--max-regret", "1000")
    monkeypatch.setenv("ATTN_TUNE_PACKS", str(pack))
    explained = answer("explain", SIGNATURE, "-d", "fwd")["fwd"]
    assert explained["answer"]["config"] == decision["config"]
    assert explained["answer"]["rung"] == "exact"
