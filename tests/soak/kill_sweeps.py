"""Random ``kill -9`` during sweeps: what was acknowledged is never lost, and every sweep continues to its end.

    python -m tests.soak.kill_sweeps --seconds 600 --out kills.json

``attn-tune sweep`` runs as a child on this machine's CPU. At random times the command, its worker or a helper is killed
(whichever of them exist then; helpers compile for a GPU, so on a CPU there is none), and the same command is run again
until it ends undisturbed; then the next sweep begins. Another connection watches the database: a trial that it has seen
is acknowledged. After every kill and at the end all acknowledged trials must still be there, samples and all, the file
must pass every integrity check, and no worker may outlive its command.

Each sweep is compared with an undisturbed one. Times differ from run to run on a CPU, and with them the winner among
near equals, so the same decisions means: the same cases are decided, and the same candidates were tried. A config put
together from the winners of its parts depends on times too, and is left out.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attn_tune.db import Database
from attn_tune.schema.trial import WHOLE, Stage

# As small as leaves some candidates; what takes time here is starting and proving.
SIGNATURE = "flash_attention/v1 b=1 t=200 s=200 n=1 k=1 h=16 v=16 dtype=float32"
PROCESSES = {
    "worker": "attn_tune.tuner.work.worker",
    "helper": "attn_tune.tuner.work.lowering_helper",
}
LOOK_S = 0.05
MOST_RUNS = 200
ORPHAN_S = 10.0
ROWS = """
SELECT id, started, status, samples_ns FROM trial
"""

type Row = tuple[int, str, str, str | None]


@dataclass(frozen=True)
class Result:
    """Result of a finished sweep: cases decided, candidates tried."""

    decided: frozenset[tuple[str, str]]
    tried: frozenset[tuple[str, ...]]


@dataclass
class Tally:
    """Counts over all sweeps: kills, exit statuses, trials by status, acknowledged trials; and the failures."""

    kills: Counter[str] = field(default_factory=Counter)
    exits: Counter[int] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    sweeps: int = 0
    failures: list[str] = field(default_factory=list)


class Watcher:
    """Another connection to the database of one sweep; ``seen`` are the trials that it saw."""

    def __init__(self, path: Path):
        self.path = path
        self.seen: dict[int, Row] = {}

    def look(self) -> None:
        """Notes what is there now."""
        for row in self.rows():
            self.seen.setdefault(row[0], row)

    def rows(self) -> list[Row]:
        """All trials; none while there is no database."""
        if not self.path.exists():
            return []
        with contextlib.closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)) as reader:
            return reader.execute(ROWS).fetchall()

    def problems(self) -> list[str]:
        """Lists acknowledged trials that are lost, and failures of the integrity check."""
        if not self.path.exists():
            return [f"{self.path.name} is gone"] if self.seen else []
        now = {row[0]: row for row in self.rows()}
        lost = [row for number, row in self.seen.items() if now.get(number) != row]
        with Database.open(self.path) as database:
            broken = database.integrity_check()
        return [f"acknowledged trial {row} is lost" for row in lost] + list(broken)


def main() -> int:
    args = _arguments()
    rng = random.Random(args.seed)
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="attn-tune-kills-") as name:
        folder = Path(name)
        start = time.monotonic()
        code = start_sweep(folder / "undisturbed.db", args).wait()
        span_s = time.monotonic() - start
        if code != 0:
            print(f"the undisturbed sweep ended with {code}", file=sys.stderr)
            return 2
        wanted = result_of(folder / "undisturbed.db")
        print(f"undisturbed: {span_s:.1f} s, {len(wanted.tried)} candidates", flush=True)
        until = start + span_s + args.seconds
        while sum(tally.kills.values()) < args.kills and time.monotonic() < until:
            torment(folder / f"{tally.sweeps}.db", args, rng, until, wanted, tally)
            kills = sum(tally.kills.values())
            print(f"{kills} kills, {tally.sweeps} sweeps, {len(tally.failures)} failures", flush=True)
        seconds = time.monotonic() - start
    report = {
        "kills": dict(sorted(tally.kills.items())),
        "kills_asked": args.kills,
        "sweeps": tally.sweeps,
        "acknowledged_trials": tally.acknowledged,
        "failures": tally.failures,
        "exits_between_kills": {str(k): n for k, n in sorted(tally.exits.items())},
        "statuses": dict(sorted(tally.statuses.items())),
        "candidates": len(wanted.tried),
        "undisturbed_s": round(span_s, 1),
        "mean_s_between_kills": args.mean_s,
        "seconds": round(seconds),
        "seed": args.seed,
        "versions": versions(),
    }
    print(json.dumps(report, indent=1))
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if tally.failures else 0


def torment(
    path: Path,
    args: argparse.Namespace,
    rng: random.Random,
    until: float,
    wanted: Result,
    tally: Tally,
) -> None:
    """One sweep, run again until it ends by itself, killed on the way while kills are left."""
    watcher = Watcher(path)
    for _ in range(MOST_RUNS):
        process = start_sweep(path, args)
        kills = sum(tally.kills.values())
        code = run_and_kill(process, watcher, args, rng, until, tally)
        tally.failures += watcher.problems()
        if code is not None:
            tally.exits[code] += 1
            if kills == sum(tally.kills.values()):  # Nothing disturbed it: it is as good as it gets.
                break
    result = result_of(path)
    tally.sweeps += 1
    tally.acknowledged += len(watcher.seen)
    tally.statuses.update(row[2] for row in watcher.rows())
    for name in ("decided", "tried"):
        have, want = getattr(result, name), getattr(wanted, name)
        if have != want:
            tally.failures.append(f"{path.name}: {name} differ: {sorted(have ^ want)}")


def run_and_kill(
    process: subprocess.Popen,
    watcher: Watcher,
    args: argparse.Namespace,
    rng: random.Random,
    until: float,
    tally: Tally,
) -> int | None:
    """The exit status of a command that ended by itself, None for one that was killed."""
    while sum(tally.kills.values()) < args.kills and time.monotonic() < until:
        # Most kills come early, while a sweep starts; some leave it time to get on.
        end = time.monotonic() + rng.expovariate(1 / args.mean_s)
        while time.monotonic() < end and process.poll() is None:
            watcher.look()
            time.sleep(LOOK_S)
        if process.poll() is not None:
            break
        children = children_of(process.pid)
        kind = rng.choice(["command", *sorted(children)])
        pid = process.pid if kind == "command" else rng.choice(children[kind])
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            tally.kills[kind] += 1
        if kind == "command":
            process.wait()
            tally.failures += orphans([p for pids in children.values() for p in pids])
            return None
    code = process.wait()
    watcher.look()
    return code


def children_of(command: int) -> dict[str, list[int]]:
    """The processes that the command has started, by what they are."""
    found: dict[str, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_text().split("\0")
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            for kind, module in PROCESSES.items():
                if parent == command and module in words:
                    found.setdefault(kind, []).append(int(folder.name))
    return found


def orphans(pids: list[int]) -> list[str]:
    """The processes that outlive their command."""
    end = time.monotonic() + ORPHAN_S
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < end:
        time.sleep(LOOK_S)
    return [f"process {pid} outlives its command" for pid in left]


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def result_of(path: Path) -> Result:
    """The result that the database at ``path`` holds."""
    if not path.exists():
        return Result(frozenset(), frozenset())
    with Database.open(path, read_only=True) as database:
        trials = [t for t in database.trials() if t.stage is Stage.SEARCH]
        parted = {(t.kernel, t.direction) for t in trials if t.part != WHOLE}
        tried = frozenset(
            (t.kernel, t.direction, t.part, t.signature.text, t.config_digest)
            for t in trials
            if t.part != WHOLE or t.is_heuristic or (t.kernel, t.direction) not in parted
        )
        decided = frozenset((d.signature.text, d.direction) for d in database.decisions(rank=0))
    return Result(decided, tried)


def start_sweep(path: Path, args: argparse.Namespace) -> subprocess.Popen:
    """The command, on this machine's CPU."""
    words = ["sweep", "-g", args.grid, "-k", args.kernel, "--db", str(path)]
    words += [word for direction in args.direction for word in ("-d", direction)]
    # In the kernel's own order: what a strategy that learns tries next depends on times.
    words += ["--strategy", "exhaustive", "--max-trials", str(args.max_trials)]
    return subprocess.Popen(
        [sys.executable, "-m", "attn_tune", *words],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def versions() -> dict[str, Any]:
    """The software of this run."""
    from attn_tune.devices.environments import current_environment

    environment = current_environment()
    return {
        "jax": environment.jax,
        "attn_tune": environment.attn_tune,
        "python": sys.version.split()[0],
        "sqlite": sqlite3.sqlite_version,
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="random kill -9 during sweeps on a CPU")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600.0, help="no kill after so long")
    parser.add_argument("--mean-s", type=float, default=5.0, help="mean time between kills")
    parser.add_argument("--grid", default=SIGNATURE)
    parser.add_argument("--kernel", default="flash_attention/xla")
    parser.add_argument("--direction", nargs="+", default=["fwd"])
    parser.add_argument("--max-trials", type=int, default=6)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
