"""Runs the commands of a page, one after the other, and writes into it what they print.

python docs/run_page.py docs/tutorial.md

A ``console`` block holds commands behind ``$`` and their output. A ``python`` block whose first line is ``# NAME.py``
is a file that later commands find. All of it happens in an empty folder, as an empty user, on the CPU.
"""

import dataclasses
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Of the table of winners a column more needs 107, and no length of its numbers makes those that are there need as many.
COLUMNS = 106
BLOCK = re.compile(r"(?<=```)(console|python)\n(.*?)(?=```)", re.DOTALL)
COMMAND = re.compile(r"^\$ (.*(?:\\\n.*)*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
# Behind the options on the page: other sweeps of this machine are not seen, and a busy machine stops no export.
UNSHOWN = {"sweep": "--lease-folder leases", "export": "--max-regret 1000000"}
# Sentences that a noisy run has and a quiet one has not; a terminal folds them.
NOISE = re.compile(
    r"^(?:tie(?: \([^)]*\))?: [\s\S]*?\sstays\.|regret <=: [\s\S]*?\sruns\.|But export will refuse [\s\S]*?\sare:"
    r"|  \d+ rows?: .*|  \d+ rows? let through .*)\n(?:    .*\n)*",
    re.MULTILINE,
)


@dataclasses.dataclass(frozen=True)
class Step:
    """A command of a page with what the page says and what it printed.

    Attributes:
      command: the command line, as the page has it.
      shown: the output on the page.
      printed: the output of the run: standard output, as a terminal of ``COLUMNS`` shows it.
    """

    command: str
    shown: str
    printed: str


def steps(text: str, folder: Path) -> Iterator[Step]:
    """Runs every command of the page ``text`` in the empty ``folder``; the next one begins when it is asked for.

    Raises:
      RuntimeError: a command failed.
    """
    environment = _environment(folder)
    for kind, body in BLOCK.findall(text):
        if kind == "python":
            if name := re.match(r"# (\w+\.py)\n", body):
                (folder / name[1]).write_text(body)
            continue
        for command, shown in COMMAND.findall(body):
            yield Step(command, shown, _printed(command, folder, environment))


def rewritten(text: str, folder: Path) -> str:
    """The page ``text`` with the output of a run."""
    found = iter(list(steps(text, folder)))

    def block(match: re.Match[str]) -> str:
        if match[1] == "python":
            return match[0]
        return f"{match[1]}\n" + COMMAND.sub(lambda one: f"$ {one[1]}\n{next(found).printed}", match[2])

    return BLOCK.sub(block, text)


def comparable(text: str) -> str:
    """``text`` without what differs from run to run and machine to machine: times, counts, digests, dates, names."""
    text = NOISE.sub("", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "DATE", text)
    text = re.sub(r"b2:[0-9a-f]+", "DIGEST", text)
    text = re.sub(r"x86_64|aarch64|arm64", "ARCH", text)
    # Numbers of kernels and packs are those of the code, and stay.
    number = r"\d+\.\d\dx\b|(?<![\w.=/-])\d+(\.\d+)?(e[-+]\d+)?( (ns|us|ms|s)\b)?(?![\w/]|\.\d| (kernels|packs)\b)"
    text = re.sub(number, "N", text)
    # Where times are noisy, a winner is a tie, which keeps the untuned config.
    text = re.sub(r"\b(winner|tie)$|\bchunk_[kq]=\d+|(?<=\"rule\": \")(winner|tie)", "", text, flags=re.MULTILINE)
    return re.sub(r"(?<=verified, )(winner|proven untuned config)", "", " ".join(text.replace("─", "").split()))


def _environment(folder: Path) -> dict[str, str]:
    programs, home = folder / "bin", folder / "home"
    programs.mkdir()
    for name, words in (("attn-tune", "-m attn_tune"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (programs / name).chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ATTN_TUNE_", "COLUMNS"))}
    return kept | {
        "HOME": str(home),
        "JAX_PLATFORMS": "cpu",
        "NO_COLOR": "1",
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm",
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local/share"),
        "XDG_STATE_HOME": str(home / ".local/state"),
    }


def _printed(command: str, folder: Path, environment: dict[str, str]) -> str:
    """The standard output of one command, with a terminal there: other widths and no terminal print other tables."""
    name = re.match(r"attn-tune (\w+)", command)
    line = f"{command} {UNSHOWN.get(name[1], '') if name else ''}"
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            line, shell=True, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=errors
        )
        os.close(theirs)
        data = b"".join(iter(lambda: _read(ours), b""))
        os.close(ours)
        if process.wait():
            errors.seek(0)
            raise RuntimeError(f"{command}: exit code {process.returncode}\n{data.decode()}\n{errors.read()}")
    text = re.sub(r"\x1b\[[0-9;]*m|\r", "", data.decode())
    text = text.replace(str(folder / "home"), "~").replace(str(folder), "$PWD")
    return "".join(f"{one.rstrip()}\n" for one in text.strip("\n").split("\n"))


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says so that the last writer has gone.
        return b""


if __name__ == "__main__":
    page = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as empty:
        page.write_text(rewritten(page.read_text(), Path(empty).resolve()))
