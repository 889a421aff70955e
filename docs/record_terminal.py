"""Record the screens of a terminal of 80 by 24 in each phase of a sweep, as text, with tmux.

    python docs/record_terminal.py [--out docs/assets/sweep-live.txt]

It sweeps one small problem on this machine's CPU, with a database that is thrown away, and captures the screen each
time another phase is on it. A machine shows other times; phases that last less than the time between two looks are
missing. ``docs/cli-live.md`` shows the recording.
"""

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SESSION = "attn-tune-recording"
PHASES = ("starting", "references", "compiling", "proving", "racing", "finals")
SWEEP = "sweep --grid cpu-smoke --point llama3/1x128 --max-trials 3"
# Seconds between two looks, and the most that a sweep may take.
LOOK_S, MOST_S = 0.05, 600.0


def main() -> None:
    """Record, and write the screens."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "assets" / "sweep-live.txt")
    out: Path = parser.parse_args().out
    screens = record()
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(f"--- {name} ---\n{text}\n" for name, text in screens.items()))
    missing = [name for name in PHASES if name not in screens]
    print(f"{out}: {', '.join(screens)}" + (f"; not seen: {', '.join(missing)}" if missing else ""))


def record() -> dict[str, str]:
    """The first whole screen of each phase in which something is to be seen, and the last of all, by name.

    Raises:
      TimeoutError: the sweep takes too long.
      CalledProcessError: tmux fails.
    """
    screens: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        command = (
            f"cd {shlex.quote(folder)} && {shlex.quote(sys.executable)} -m attn_tune {SWEEP} --db sweep.db; exec cat"
        )
        settings = [*("-e", "JAX_PLATFORMS=cpu"), *("-e", f"PYTHONPATH={ROOT}")]
        _tmux("new-session", "-d", "-x", "80", "-y", "24", *settings, command)
        try:
            for screen in _screens():
                if phase := re.search(rf"\b({'|'.join(PHASES)})\b", screen):
                    screens[phase[1]] = screens.get(phase[1]) or screen
                if "attn-tune explain" in screen:
                    time.sleep(1.0)  # the last lines come at once
                    return screens | {"end": _tmux("capture-pane", "-p", "-S", "-", "-t", SESSION).rstrip()}
        finally:
            _tmux("kill-session", "-t", SESSION)
    raise TimeoutError(f"the sweep is not over after {MOST_S:g} s")


def _screens() -> Iterator[str]:
    """The screens of the terminal, one after the other, without blank lines at their ends."""
    end = time.monotonic() + MOST_S
    while time.monotonic() < end:
        yield _tmux("capture-pane", "-p", "-t", SESSION).rstrip()
        time.sleep(LOOK_S)


def _tmux(*words: str) -> str:
    where = ["-s", SESSION] if words[0] == "new-session" else []
    command = ["tmux", "-L", SESSION, words[0], *where, *words[1:]]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
