"""A disk that fills up under the database: one clear error, nothing lost, and the same command continues."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attn_tune.cli import app

ROOT = Path(__file__).resolve().parents[2]

# Sweeps for ever on a small disk, then once more on a larger one. What it prints is judged outside.
SWEEP = """
import json, os, resource, subprocess, sys
from pathlib import Path
from attn_tune.db import Database
from attn_tune.schema import StorageError
from tests.cli.fakes import FakeExecutor, fill

how, folder = sys.argv[1], Path(sys.argv[2])
path = folder / "lab.db"
fill(path, directions=("fwd",))  # The schema and a first run fit.


def tighten():
    size = path.stat().st_size + 160_000
    if how == "tmpfs":
        subprocess.run(["mount", "-o", f"remount,size={size}", folder], check=True)
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))


def widen():
    if how == "tmpfs":
        subprocess.run(["mount", "-o", "remount,size=64m", folder], check=True)


class Acknowledging(FakeExecutor):
    def run(self, request):
        # Whoever asks for the next config has stored the one before.
        with Database.open(path, read_only=True) as reader:
            acknowledged.update(t.started_us for t in reader.trials())
        return super().run(request)


acknowledged = set()
said = {}
if os.fork() == 0:  # The command that meets the full disk ends; another one goes on.
    tighten()
    try:
        for _ in range(10_000):
            fill(path, Acknowledging(), directions=("fwd",), resume=False)
    except StorageError as error:
        said = {"error": str(error), "code": error.exit_code, "acknowledged": list(acknowledged)}
    folder.with_name("said.json").write_text(json.dumps(said))
    os._exit(0)
os.wait()
widen()
said = json.loads(folder.with_name("said.json").read_text())
acknowledged = set(said["acknowledged"])
with Database.open(path) as database:
    said["problems"] = database.integrity_check()
    stored = {t.started_us for t in database.trials()}
said["acknowledged"], said["lost"] = len(acknowledged), len(acknowledged - stored)
said["ending"] = fill(path).ending
said["decided"] = len(fill(path).decisions)
print(json.dumps(said))
"""


def private_mounts() -> list[str]:
    """The words before a command that may mount as it likes, for itself alone; empty where that is not allowed."""
    words = ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None:
        return []
    probe = subprocess.run([*words, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    return words if probe.returncode == 0 else []


@pytest.mark.parametrize("how", ["tmpfs", "file size limit"])
def test_a_full_disk_is_one_error_and_loses_nothing(how, tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    words = [sys.executable, "-c", SWEEP, how, str(folder)]
    if how == "tmpfs":
        unshare = private_mounts()
        if not unshare:
            pytest.skip("mounting a small disk is not allowed here; the limit on file sizes is tested")
        words = [*unshare, "sh", "-c", 'mount -t tmpfs -o size=64m none "$0" && exec "$@"']
        words += [str(folder), sys.executable, "-c", SWEEP, how, str(folder)]
    done = subprocess.run(
        words,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert "lab.db cannot be used" in said["error"]
    assert said["code"] == 4
    assert said["acknowledged"] > 0
    assert said["lost"] == 0
    assert said["problems"] == []
    assert (said["ending"], said["decided"]) == ("finished", 2)


def test_a_full_disk_under_the_users_packs_is_one_error(tmp_path, monkeypatch):
    def copyfile(source, target, **_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), source, None, target)

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "copyfile", copyfile)
    folder = ROOT / "attn_tune" / "packs" / "shipped" / "tpu-v4"
    result = CliRunner().invoke(app, ["pack", "import", str(folder), "--to", "user"], prog_name="attn-tune")
    place = tmp_path / "attn-tune" / "packs"
    assert result.exit_code == 4
    assert result.stderr == f"error: cannot install {folder} in {place}: No space left on device\n"
    assert list(place.iterdir()) == []
