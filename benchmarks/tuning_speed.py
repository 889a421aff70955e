"""Tuning speed of attn-tune and its peers on flash attention: configs a second, one GPU, one shape, one run.

    python benchmarks/tuning_speed.py --out tuning_speed.json

Each tuner runs in a process of its own, one after the other, with empty compilation caches and a time limit; one that
crashes or hangs is a row that says so. ``wall s`` is the same for all: from the call that tunes to its end, with
everything loaded and the device in use before (attn-tune's call starts when its worker has the device). ``with
start s`` is the whole process: interpreter, imports, device, tuning, exit.

A config counts when its tuner is done with it: compiled and timed, or failed. attn-tune also proves each one right
(outputs or gradients, on two inputs, against a float32 reference), which no other does. It searches the two launches
of its backward apart, so a config of its backward is one launch; tokamax's is the whole backward, and ejkernel's is
forward and backward. Finals, which time the best again, are in attn-tune's wall time and not in its count.

The columns of phases are wall time of attn-tune's worker, summed over configs; ``prepare`` is inputs and reference.
``GPU idle`` is the share of ``wall s`` in which no kernel ran, by ``gpu_usage.py``'s samples of the driver's
utilization counter at 10 Hz: each says how much of the last interval was busy.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpu_usage import sampling
from tuning_record import Record, Task
from tuning_rows import KIND, Row, add_up, make_rows, markdown

TUNERS = ("attn-tune", "tokamax-triton", "tokamax-mosaic", "ejkernel")
_CONTENDERS = Path(__file__).with_name("tuning_contenders.py")
_PACKAGES = ("attn-tune", "jax", "jaxlib", "triton", "tokamax", "ejkernel")
# A sweep that is asked to stop writes down what it has.
_STOP_GRACE_S = 20.0
# What another run may have left in a cache must not be found.
_CACHES_UNSET = ("JAX_COMPILATION_CACHE_DIR", "EJKERNEL_PERSISTENT_CACHE_DIR")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One process: which tuner, and the options that it alone takes."""

    tuner: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Ended:
    """End of a process. ``limit_s`` is the time limit that it ran into, or None."""

    code: int
    wall_s: float
    limit_s: float | None = None
    last_words: str = ""

    @property
    def reason(self) -> str:
        """Reason for a failure; empty if there was none."""
        if self.limit_s is not None:
            return f"no end within {self.limit_s:g} s"
        if self.code == 0:
            return ""
        how = f"exit status {self.code}"
        if self.code < 0:
            how = f"killed by {signal.Signals(-self.code).name}"
        return f"{how}: {self.last_words}" if self.last_words else how


def main(arguments: Sequence[str] | None = None) -> int:
    args = _arguments(arguments)
    rows: list[Row] = []
    device: Mapping[str, Any] = {}
    for tuner in args.tuner or TUNERS:
        mine: list[Row] = []
        for job in jobs(tuner, args):
            record, some = run(job, args.task, args.limit, args.logs)
            mine += some
            device = device or record.device
        if len(mine) == 2 and all(row.wall_s for row in mine):
            mine.append(add_up(mine))
        rows += mine
        if args.out:  # After each, so that a run cut short keeps what it has.
            args.out.write_text(json.dumps(report(args.task, device, rows), indent=1) + "\n")
    print(markdown(row.to_json() for row in rows))
    return 0


def jobs(tuner: str, args: argparse.Namespace) -> list[Job]:
    """The processes of one tuner: attn-tune has one for each direction, as its users do."""
    if tuner != "attn-tune":
        return [Job(tuner=tuner)]
    trials = {"fwd": args.max_trials_fwd, "bwd": args.max_trials_bwd}
    return [
        Job(
            tuner=tuner,
            options=(
                *("--kernel", args.kernel, "--direction", direction),
                *("--max-trials", str(count)),
            ),
        )
        for direction, count in trials.items()
    ]


def run(job: Job, task: Task, limit_s: float, logs: Path | None) -> tuple[Record, list[Row]]:
    """Runs one tuner to its end, or to the limit."""
    print(f"{job.tuner} {' '.join(job.options)}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="tuning-speed-") as name, sampling() as samples:
        folder = Path(name)
        record = folder / "record.json"
        command = [sys.executable, str(_CONTENDERS), job.tuner, *job.options]
        command += ["--record", str(record), "--task", json.dumps(asdict(task))]
        log = (logs or folder) / f"{'_'.join([job.tuner, *job.options[3:4]])}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        ended = spawn(command, child_environment(folder), limit_s, log)
        found = Record.read(record)
    found = replace(found, failed=found.failed if ended.limit_s is None else ended.reason)
    if not found.failed:
        found = replace(found, failed=ended.reason or ("" if found.steps else "no result"))
    return found, make_rows(job.tuner, found, samples, ended.wall_s)


def spawn(command: Sequence[str], env: Mapping[str, str], limit_s: float, log: Path) -> Ended:
    """Runs ``command`` in a process group of its own, its output in ``log``; after ``limit_s`` the group is ended."""
    started = time.monotonic()
    late = None
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            late = limit_s
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_GRACE_S)
        finally:
            wall_s = time.monotonic() - started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return Ended(code=process.returncode, wall_s=wall_s, limit_s=late, last_words=_last_words(log))


def child_environment(folder: Path) -> dict[str, str]:
    """This process's, with empty caches in ``folder``."""
    env = {name: value for name, value in os.environ.items() if name not in _CACHES_UNSET}
    # Packages must be found as they are here.
    env["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    env["TRITON_CACHE_DIR"] = str(folder / "triton")
    env["CUDA_CACHE_PATH"] = str(folder / "cuda")
    return env


def report(task: Task, device: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """Builds the report that ``--out`` writes."""
    from attn_tune.devices.environments import current_environment

    environment = current_environment()
    return {
        "kind": KIND,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": dict(device),
        "driver": environment.driver,
        "compiler": environment.compiler,
        "versions": {name: _version(name) for name in _PACKAGES},
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "task": asdict(task),
        "rows": [row.to_json() for row in rows],
    }


def parse_shape(text: str) -> dict[str, int]:
    """``4x4096x16x128``: batch, length, heads, head dim."""
    names = ("batch", "length", "heads", "head_dim")
    sizes = text.lower().split("x")
    if len(sizes) != len(names) or not all(size.isdigit() for size in sizes):
        raise argparse.ArgumentTypeError(f"{text!r} must be BxTxNxH, as in 4x4096x16x128")
    return dict(zip(names, map(int, sizes), strict=True))


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--tuner", action="append", choices=TUNERS, help="only this one; repeatable")
    parser.add_argument("--shape", type=parse_shape, default="4x4096x16x128", help="BxTxNxH; default: %(default)s")
    parser.add_argument("--kv-heads", type=int, help="default: as many as heads")
    parser.add_argument("--dtype", default=Task.dtype)
    parser.add_argument("--full", action="store_true", help="not causal")
    parser.add_argument("--kernel", default="flash_attention/triton", help="attn-tune's")
    parser.add_argument("--max-trials-fwd", type=int, default=256)
    parser.add_argument("--max-trials-bwd", type=int, default=100, help="of each launch; default: %(default)s")
    parser.add_argument("--limit", type=float, default=400.0, help="seconds a process may take")
    parser.add_argument("--logs", type=Path, help="keep the tuners' output in this folder")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    args.task = Task(
        **args.shape,
        kv_heads=args.kv_heads or args.shape["heads"],
        dtype=args.dtype,
        causal=not args.full,
    )
    return args


if __name__ == "__main__":
    sys.exit(main())
