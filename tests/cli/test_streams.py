"""The streams of a command: full, closed or of few characters, they cost one line and never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(shell, **environ):
    """``attn-tune`` in a shell line, as ``$A``."""
    return subprocess.run(
        ["sh", "-c", shell],
        env=os.environ
        | {"A": f"{sys.executable} -m attn_tune", "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        | environ,
        capture_output=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [("grids", ""), ("grids", "1"), ("grids --json", ""), ("--help", ""), ("--version", "1")],
)
def test_a_full_disk_under_stdout_is_one_line(words, unbuffered):
    done = run(f"$A {words} > /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert done.stderr == b"error: stdout cannot be written: No space left on device\n"
    assert done.returncode == 4


def test_an_error_of_the_command_keeps_its_own_code():
    done = run("$A grids nowhere > /dev/full")
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: unknown grid")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_error_without_a_reader_keeps_its_code(unbuffered):
    read, write = os.pipe()
    os.close(read)
    line = [sys.executable, "-m", "attn_tune", "plan", "--grid", "nosuch"]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(line, env=environ, stdout=write, stderr=write, check=False)
    os.close(write)
    assert done.returncode == 2
    assert run("$A plan --grid nosuch 2> /dev/full").returncode == 2


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_as_good_as_none(closed):
    done = run(f"$A grids {closed}")
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_encoding_without_lines_and_boxes_gets_question_marks():
    done = run("$A grids", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"???" in done.stdout
    assert done.stdout.isascii()
    assert "───" in run("$A grids", PYTHONIOENCODING="utf-8").stdout.decode()


def test_a_path_that_the_locale_cannot_say_is_shown(tmp_path):
    path = os.fsencode(tmp_path) + b"/labor-\xfc.db"
    done = run(
        'printf "$P" | xargs -0 $A report --db',
        P=os.fsdecode(path),
        LANG="C",
        PYTHONUTF8="0",
        PYTHONCOERCECLOCALE="0",
    )
    assert done.returncode == 123  # xargs: the command failed
    assert done.stderr.startswith(b"error: there is no database at ")
    assert done.stderr.count(b"\n") == 1


def test_a_fifo_given_as_database_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "lab.db")
    for words in ("report", "lab gc", "status"):
        done = run(f"$A {words} --db '{tmp_path}/lab.db'")
        assert done.returncode == 4
        assert b"lab.db is a FIFO, not a regular file" in done.stderr


def test_no_temporary_directory_is_one_line(tmp_path):
    """As where every file is refused; the sweep has not begun then."""
    grid = "flash_attention/v1 b=1 t=16 s=16 n=1 k=1 h=16 v=16 dtype=float32"
    done = run(
        f"ulimit -f 0; $A sweep -g '{grid}' -k flash_attention/xla -d fwd --db '{tmp_path}/lab.db' "
        f"--lease-folder '{tmp_path}/leases'"
    )
    assert done.returncode == 4, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith(b"error: ")]
    assert len(errors) == 1
    assert b"Traceback" not in done.stderr


def test_an_absent_tpu_is_not_complained_of():
    """libtpu writes to stderr as JAX looks for a TPU, unless it is given the place of a lone host."""
    pytest.importorskip("libtpu")
    done = run("unset JAX_PLATFORMS; exec $A devices")
    assert done.returncode == 0, done.stderr
    assert b"TPU" not in done.stderr
