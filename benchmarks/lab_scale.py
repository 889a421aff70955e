"""The lab database with millions of measurements: size, import, decisions, lookups.

    python benchmarks/lab_scale.py --rows 10000000 --folder /scratch --out lab_scale.json

A lab is made up in the proportions of a recorded H200 sweep: 85 % of the searched configs have 3 samples, the others
12, finals 24; the code of every config has a digest of its own on every problem, and every compilation a time of its
own, both random and so incompressible; errors recur (30 kinds a case), 5 % of the trials fail. Each problem is swept
four times, twice in each of two environments. Two hosts with two devices each write a database of their own, every
trial through ``Database.record_many``; both are merged into an empty one (the bulk import). There all decisions are
rebuilt, single ones are looked up, and the file is checked.

Processor seconds are given beside elapsed ones: a machine that others use, too, shows in the difference.
"""

import argparse
import json
import multiprocessing
import os
import random
import sqlite3
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attn_tune.db import Database, merge_database
from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.schema import (
    Device,
    Environment,
    Measurement,
    OutputError,
    Protocol,
    Resources,
    Signature,
    Stage,
    Status,
    Trial,
)

# (kernel, how many configs its space has)
KERNELS = (("flash_attention/triton", 720), ("flash_attention/xla", 48))
DIRECTIONS = ("fwd", "bwd")
HOSTS = 2
SWEEPS = 4
FINALISTS = 5
FAILED = 0.05
ERROR_KINDS = 30
SEARCH = Protocol(timer="cupti", warmup=2, flush_l2=True)
FINAL = Protocol(timer="cupti", warmup=2, flush_l2=True, interleaved=True)
DEVICES = tuple(
    Device(
        platform="cuda",
        family=family,
        variant=variant,
        units=units,
        shared_bytes=232448,
        evidence=(("driver", "570.1"),),
    )
    for family, variant, units in (
        ("sm_90", "nvidia-h200", 132),
        ("sm_90", "nvidia-h100-pcie", 114),
        ("sm_100", "nvidia-b200", 148),
        ("sm_80", "nvidia-a100", 108),
    )
)
START_US = 1_700_000_000_000_000


def main() -> int:
    args = _arguments()
    args.folder.mkdir(parents=True, exist_ok=True)
    hosts = [args.folder / f"host-{number}.db" for number in range(HOSTS)]
    copy = args.folder / "lab.db"
    for path in (copy,) if args.reuse else (*hosts, copy):
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
    report: dict[str, Any] = {"rows_asked": args.rows}
    per_signature = len(DEVICES) * sum(n for _, n in KERNELS) * len(DIRECTIONS) * SWEEPS
    signatures = make_signatures(max(1, round(args.rows / (per_signature * (1 - FAILED)))))
    if not args.reuse:
        report |= fill_hosts(hosts, signatures, args.seed)
    with Database.open(copy, create=True) as database:
        cpu = time.process_time()
        seconds, merged = timed(lambda: [merge_database(database, host) for host in hosts])
        trials = sum(summary.trials for summary in merged)
        report |= {
            "merge_s": round(seconds, 1),
            "merge_cpu_s": round(time.process_time() - cpu, 1),
            "merge_rows_per_s": round(trials / seconds),
            "merge_rows_per_cpu_s": round(trials / (time.process_time() - cpu)),
        }
    with Database.open(copy) as database:
        facts = database.describe()
        report |= {
            "trials": facts.counts["trial"],
            "measurements": facts.counts["measurement"],
            "runs": facts.counts["run"],
            "bytes": facts.size_bytes,
            "bytes_per_trial": round(facts.size_bytes / facts.counts["trial"], 1),
        }
        cpu = time.process_time()
        seconds, problems = timed(database.rebuild_decisions)
        report |= {
            "rebuild_decisions_s": round(seconds, 1),
            "rebuild_decisions_cpu_s": round(time.process_time() - cpu, 1),
            "problems": problems,
        }
        seconds, _ = timed(lambda: database.rebuild_decisions(signatures=signatures[:1]))
        report["rebuild_one_signature_ms"] = round(seconds * 1e3, 1)
    report |= look_up(copy, signatures, args.seed)
    report["where_the_bytes_are"] = bytes_by_column(copy)
    with Database.open(copy, read_only=True) as database:
        seconds, problems_found = timed(database.integrity_check)
    report |= {"integrity_check_s": round(seconds, 1), "problems_found": list(problems_found)}
    report["versions"] = {"python": sys.version.split()[0], "sqlite": sqlite3.sqlite_version}
    report["cpus"] = os.cpu_count()
    print(json.dumps(report, indent=1))
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if problems_found else 0


def make_signatures(count: int) -> list[Signature]:
    """Causal problems of different lengths, heads and batches."""
    found = []
    for i in range(count):
        length = 128 * (1 + i // 8 % 64)
        problem = Problem(
            batch=1 + i // 512,
            q_len=length,
            kv_len=length,
            num_q_heads=8 << i % 4,
            num_kv_heads=8,
            head_dim=64 << i // 4 % 2,
            v_head_dim=64 << i // 4 % 2,
            causal=True,
        )
        found.append(problem.signature)
    return found


def fill_hosts(paths: list[Path], signatures: list[Signature], seed: int) -> dict[str, Any]:
    """Fills the databases of the hosts, all at once."""
    share = len(DEVICES) // len(paths)
    work = [
        (path, signatures, seed, DEVICES[share * i : share * (i + 1)])
        for i, path in enumerate(paths)
    ]
    start = time.perf_counter()
    with multiprocessing.Pool(len(paths)) as pool:
        filled = pool.starmap(fill_host, work)
    trials = sum(count for count, _ in filled)
    return {
        "record_many_trials": trials,
        "record_many_s": round(time.perf_counter() - start),
        "record_many_rows_per_cpu_s_with_making_them": round(
            trials / sum(cpu for _, cpu in filled)
        ),
    }


def fill_host(
    path: Path, signatures: list[Signature], seed: int, devices: Sequence[Device]
) -> tuple[int, float]:
    """How many trials there are, and the processor's seconds."""
    start = time.process_time()
    with Database.open(path, create=True) as database:
        return fill(database, signatures, seed, devices), time.process_time() - start


def fill(
    database: Database, signatures: list[Signature], seed: int, devices: Sequence[Device] = DEVICES
) -> int:
    """Sweeps every device four times; one transaction a case. Returns how many trials there are."""
    trials, clock = 0, START_US
    spaces = {kernel: make_space(kernel, count) for kernel, count in KERNELS}
    for sweep in range(SWEEPS):
        for device in devices:
            environments = {
                kernel: Environment(
                    jax=f"0.1{1 + sweep // 2}.0",
                    jaxlib=f"0.1{1 + sweep // 2}.0",
                    triton="3.9.0",
                    driver="570.1",
                    source_hash=f"b2:{kernel}",
                )
                for kernel, _ in KERNELS
            }
            run = database.begin_run(
                device=device, environment=environments[KERNELS[0][0]], argv=["attn-tune", "sweep"]
            )
            for signature in signatures:
                for direction in DIRECTIONS:
                    for kernel, _ in KERNELS:
                        case = Case(
                            kernel, direction, signature, device, environments[kernel], clock
                        )
                        rng = generator(f"{seed} {sweep} {case.label}")
                        trials += database.record_many(run, case.trials(spaces[kernel], rng, sweep))
                        clock += 60_000_000
            database.end_run(run, "finished")
    return trials


class Case:
    """The trials of one kernel and direction on one problem, one device and in one environment."""

    def __init__(
        self,
        kernel: str,
        direction: str,
        signature: Signature,
        device: Device,
        environment: Environment,
        clock: int,
    ):
        self.shared = {
            "kernel": kernel,
            "direction": direction,
            "signature": signature,
            "device": device,
            "environment": environment,
        }
        self.label = f"{kernel} {direction} {signature.text} {device.digest}"
        self.clock = clock

    def trials(
        self, space: list[dict[str, Any]], rng: np.random.Generator, sweep: int
    ) -> Iterator[Trial]:
        """The search, then the finals of its fastest."""
        # The times and the code belong to the problem and the software, the noise to the sweep.
        fixed = generator(f"{self.label} {sweep // 2}")
        outputs = ("out",) if self.shared["direction"] == "fwd" else ("dq", "dk", "dv")
        checks = [
            tuple(
                OutputError(output=o, error=error, allowed=0.0103)
                for o, error in zip(outputs, row, strict=False)
            )
            for row in (fixed.random((ERROR_KINDS, 3)) * 0.004).tolist()
        ]
        count = len(space)
        slowdown = 1 + np.abs(fixed.normal(size=count))
        centers = (int(fixed.integers(20_000, 3_000_000)) * slowdown).astype(np.int64)
        codes = fixed.bytes(16 * count).hex()
        failed = (fixed.random(count) < FAILED).tolist()
        compile_ms = rng.lognormal(6, 1, count).tolist()
        noise = rng.normal(1, 0.003, (count, 12))
        samples = np.maximum(1, (noise * centers[:, None]).astype(np.int64)).tolist()
        is_short = (rng.random(count) < 0.85).tolist()
        kinds = rng.integers(0, ERROR_KINDS, count).tolist()
        middle = count // 2
        measured = []
        for number, config in enumerate(space):
            if failed[number] and number != middle:
                reason = f"shared memory: {1024 * (number % 220)} bytes needed"
                yield self._trial(config, number, Status.OUT_OF_RESOURCES, reason=reason)
                continue
            resources = Resources(
                shared_bytes=1024 * (number % 220),
                registers=32 + 8 * (number % 28),
                spill_bytes=0 if number % 9 else 64,
                code_digest="b2:" + codes[32 * number : 32 * number + 32],
            )
            measured.append((int(centers[number]), number, resources))
            yield self._trial(
                config,
                number,
                Status.OK,
                is_heuristic=number == middle,
                errors=checks[kinds[number]],
                resources=resources,
                compile_ms=compile_ms[number],
                measurement=Measurement(
                    samples_ns=tuple(samples[number][: 3 if is_short[number] else 12]),
                    protocol=SEARCH,
                ),
            )
        measured.sort(key=lambda item: item[0])
        best = measured[:FINALISTS]
        best += [item for item in measured[FINALISTS:] if item[1] == middle]
        round_id = rng.bytes(16).hex()
        for place, (center, number, resources) in enumerate(best):
            final = np.maximum(1, rng.normal(center, 0.003 * center, 24).astype(np.int64))
            yield self._trial(
                space[number],
                count + place,
                Status.OK,
                stage=Stage.FINAL,
                is_heuristic=number == middle,
                resources=resources,
                compile_ms=compile_ms[number],
                measurement=Measurement(
                    samples_ns=tuple(final.tolist()), protocol=FINAL, round_id=round_id
                ),
            )

    def _trial(self, config: dict[str, Any], number: int, status: Status, **rest: Any) -> Trial:
        started_us = self.clock + number * 50_123
        return Trial(**self.shared, config=config, status=status, started_us=started_us, **rest)


def generator(name: str) -> np.random.Generator:
    """Random numbers that depend on ``name`` only."""
    return np.random.default_rng(list(name.encode()))


def make_space(kernel: str, count: int) -> list[dict[str, Any]]:
    """Configs as a kernel's space has them."""
    return [
        {
            "block_q": 16 << i % 4,
            "block_k": 16 << i // 4 % 4,
            "num_warps": 1 << i // 16 % 4,
            "num_stages": 1 + i // 64 % 5,
            "variant": i // 320,
        }
        for i in range(count)
    ]


def look_up(path: Path, signatures: list[Signature], seed: int) -> dict[str, Any]:
    """Microseconds for one decision, of a warm reader."""
    rng = random.Random(seed)
    keys = [
        (rng.choice(signatures), rng.choice(DIRECTIONS), rng.choice(DEVICES)) for _ in range(20_000)
    ]
    with Database.open(path, read_only=True) as database:
        found = [database.decision(*key) for key in keys]
        took = []
        for key in keys:
            start = time.perf_counter_ns()
            database.decision(*key)
            took.append((time.perf_counter_ns() - start) / 1e3)
    took.sort()
    return {
        "lookups": len(keys),
        "lookups_found": sum(d is not None for d in found),
        "lookup_p50_us": round(statistics.median(took), 1),
        "lookup_p99_us": round(took[len(took) * 99 // 100], 1),
    }


def bytes_by_column(path: Path) -> dict[str, float]:
    """Mean bytes a trial: of each column's content, as SQLite stores it, and of the rest of the file."""
    integer = (
        "sum(CASE WHEN {c} IS NULL OR {c} IN (0, 1) THEN 0 WHEN {c} BETWEEN -128 AND 127 THEN 1 "
        "WHEN {c} BETWEEN -32768 AND 32767 THEN 2 WHEN {c} BETWEEN -8388608 AND 8388607 THEN 3 "
        "WHEN {c} BETWEEN -2147483648 AND 2147483647 THEN 4 ELSE 6 END)"
    )
    columns = {
        name: integer.format(c=name)
        for name in (
            "config_id",
            "outcome_id",
            "verification_id",
            "resources_id",
            "started_after_us",
            "median_ns",
        )
    }
    columns |= {
        "code_digest": "sum(length(code_digest))",
        "compile_ms": "8 * count(compile_ms)",
        "samples": "sum(length(samples))",
    }
    with sqlite3.connect(path) as raw:
        sums = ", ".join(columns.values())
        count, *sizes = raw.execute(f"SELECT count(*), {sums} FROM trial_data").fetchone()
        (total,) = raw.execute(
            "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        ).fetchone()
    found = {name: round((size or 0) / count, 2) for name, size in zip(columns, sizes, strict=True)}
    found["row_and_page_overhead_and_other_tables"] = round(total / count - sum(found.values()), 2)
    return found


def timed(work: Any) -> tuple[float, Any]:
    """Seconds, and what ``work`` returned."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="the lab database with millions of measurements")
    parser.add_argument("--rows", type=int, default=10_000_000, help="measurements, about")
    parser.add_argument("--folder", type=Path, required=True, help="where two databases may be")
    parser.add_argument("--reuse", action="store_true", help="the hosts' databases are there")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
