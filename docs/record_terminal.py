"""Record the screens of a terminal of 80 by 24 in each phase of a sweep, as text, with tmux.

    python docs/record_terminal.py [--out docs/assets/sweep-live.txt]

It sweeps one small problem on this machine's CPU, with a database that is thrown away, and captures the screen each
time another phase is on it; once also that of ``status --watch`` in a second terminal. Then it takes the answer of
``status``, and the lines that a sweep writes where stderr is no terminal. A machine shows other times; phases that last
less than the time between two looks are missing. ``docs/cli-live.md`` is made from the recording.
"""

import argparse
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "assets" / "sweep-live.txt"
# The server of tmux, whose sessions are the two terminals.
SERVER = "attn-tune-recording"
PHASES = ("starting", "references", "compiling", "proving", "racing", "finals")
SWEEP = "sweep --grid cpu-smoke --point llama3/1x128 --max-trials 3 --db sweep.db"
WATCH = "status --watch --db sweep.db"
# The names of the other sections: both terminals at one moment, the last screen, the answers of other commands.
SHOWN, WATCHED, END, STATUS, LOG = "sweep", "status --watch", "end", "status", "log"
OTHERS = re.compile(r"^another sweep runs on this host[\s\S]*?\)\n", re.MULTILINE)
# Seconds between two looks, and the most that a sweep may take.
LOOK_S, MOST_S = 0.05, 900.0
_SETTINGS = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}


def main() -> None:
    """Record, and write the screens."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=OUT)
    out: Path = parser.parse_args().out
    with tempfile.TemporaryDirectory() as folder:
        screens = record(folder) | others(folder)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(f"--- {name} ---\n{text}\n" for name, text in screens.items()))
    missing = [name for name in (*PHASES, SHOWN, WATCHED) if name not in screens]
    print(f"{out}: {', '.join(screens)}" + (f"; not seen: {', '.join(missing)}" if missing else ""))


def sections(text: str) -> dict[str, str]:
    """The sections of a recording by name."""
    parts = re.split(r"^--- (.*) ---\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], (part.rstrip() for part in parts[1::2]), strict=True))


def record(folder: str) -> dict[str, str]:
    """The first whole screen of each phase in which something is to be seen, and the last of all, by name.

    Raises:
      TimeoutError: the sweep takes too long.
      CalledProcessError: tmux fails.
    """
    screens: dict[str, str] = {}
    try:
        _open(folder, SHOWN, SWEEP)
        is_watched = False
        for screen in _screens():
            if phase := re.search(rf"\b({'|'.join(PHASES)})\b", screen):
                screens[phase[1]] = screens.get(phase[1]) or screen
                if phase[1] == "references" and not is_watched:
                    _open(folder, "watch", WATCH)
                    is_watched = True
            # Both terminals at one moment, once a config has a time.
            if SHOWN not in screens and "compiling" in screen and "best" in screen:
                watched = _capture("watch")
                if "compiling" in watched and "best" in watched:
                    screens |= {SHOWN: screen, WATCHED: watched}
            if "attn-tune explain" in screen:
                time.sleep(1.0)  # the last lines come at once
                return screens | {END: OTHERS.sub("", _tmux("capture-pane", "-p", "-S", "-", "-t", SHOWN)).rstrip()}
    finally:
        _tmux("kill-server")
    raise TimeoutError(f"the sweep is not over after {MOST_S:g} s")


def others(folder: str) -> dict[str, str]:
    """The answer of ``status`` after the sweep in ``folder``, and the log of another sweep, up to its first finals."""
    answered = _run(folder, WATCH.replace(" --watch", ""), stdout=subprocess.PIPE)
    answered = answered.replace(f" of {platform.node()}", " of this host").replace("python -m attn_tune", "attn-tune")
    logged = _run(folder, SWEEP.replace("sweep.db", "log.db"), stderr=subprocess.PIPE)
    lines = [line.rstrip() for line in OTHERS.sub("", logged).splitlines()]
    until = next((place for place, line in enumerate(lines) if "finals" in line), len(lines))
    return {
        STATUS: answered.rstrip(),
        LOG: "\n".join(lines[: until + 1]),
    }


def _run(folder: str, words: str, **streams: int) -> str:
    command = [sys.executable, "-m", "attn_tune", *words.split()]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **_SETTINGS, "COLUMNS": "80"},
        text=True,
        check=True,
        **(quiet | streams),
    )
    return done.stdout or done.stderr


def _open(folder: str, name: str, words: str) -> None:
    """A terminal that runs a command of attn-tune in ``folder`` and stays."""
    command = f"cd {shlex.quote(folder)} && {shlex.quote(sys.executable)} -m attn_tune {words}; exec cat"
    settings = [word for key, value in _SETTINGS.items() for word in ("-e", f"{key}={value}")]
    _tmux("new-session", "-d", "-s", name, "-x", "80", "-y", "24", *settings, command)


def _screens() -> Iterator[str]:
    """The screens of the sweep's terminal, one after the other."""
    end = time.monotonic() + MOST_S
    while time.monotonic() < end:
        yield _capture(SHOWN)
        time.sleep(LOOK_S)


def _capture(name: str) -> str:
    """The screen of a terminal, without blank lines at its end and without notes on other sweeps of the host."""
    return OTHERS.sub("", _tmux("capture-pane", "-p", "-t", name)).rstrip()


def _tmux(*words: str) -> str:
    return subprocess.run(["tmux", "-L", SERVER, *words], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
