"""The lab database with millions of measurements: size, import, decisions, lookups.

    python benchmarks/lab_scale.py --rows 10000000 --folder /scratch --out lab_scale.json

``lab_trials.py`` makes up a lab in the proportions of a recorded H200 sweep. Two hosts with two devices each write a
database of their own, every trial through ``Database.record_many``; both are merged into an empty one (the bulk
import). There all decisions are rebuilt, single ones are looked up, and the file is checked.

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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab_trials import (
    DEVICES,
    DIRECTIONS,
    KERNELS,
    PER_SIGNATURE,
    SWEEPS,
    Case,
    environment,
    make_signatures,
)

from attn_tune.db import Database, merge_database
from attn_tune.schema import Device, Signature

HOSTS = 2
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
    signatures = make_signatures(max(1, round(args.rows / PER_SIGNATURE)))
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
    report["where_the_bytes_are"] = bytes_by_table(copy)
    with Database.open(copy, read_only=True) as database:
        seconds, problems_found = timed(database.integrity_check)
    report |= {"integrity_check_s": round(seconds, 1), "problems_found": list(problems_found)}
    report["versions"] = {"python": sys.version.split()[0], "sqlite": sqlite3.sqlite_version}
    report["cpus"] = os.cpu_count()
    print(json.dumps(report, indent=1))
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if problems_found else 0


def fill_hosts(paths: list[Path], signatures: list[Signature], seed: int) -> dict[str, Any]:
    """Fills the databases of the hosts, all at once."""
    share = len(DEVICES) // len(paths)
    work = [(path, signatures, seed, DEVICES[share * i : share * (i + 1)]) for i, path in enumerate(paths)]
    start = time.perf_counter()
    with multiprocessing.Pool(len(paths)) as pool:
        filled = pool.starmap(fill_host, work)
    trials = sum(count for count, _ in filled)
    return {
        "record_many_trials": trials,
        "record_many_s": round(time.perf_counter() - start),
        "record_many_rows_per_cpu_s_with_making_them": round(trials / sum(cpu for _, cpu in filled)),
    }


def fill_host(path: Path, signatures: list[Signature], seed: int, devices: Sequence[Device]) -> tuple[int, float]:
    """Fills one host's database; returns the number of trials and the processor seconds."""
    start = time.process_time()
    with Database.open(path, create=True) as database:
        return fill(database, signatures, seed, devices), time.process_time() - start


def fill(
    database: Database,
    signatures: list[Signature],
    seed: int,
    devices: Sequence[Device] = DEVICES,
    sweeps: int = SWEEPS,
) -> int:
    """Sweeps every device ``sweeps`` times; one transaction a case. Returns how many trials there are."""
    trials, clock = 0, START_US
    for sweep in range(sweeps):
        for device in devices:
            software = {kernel: environment(kernel, sweep) for kernel, _ in KERNELS}
            run = database.begin_run(device=device, environment=software[KERNELS[0][0]], argv=["attn-tune", "sweep"])
            for signature in signatures:
                for direction in DIRECTIONS:
                    for kernel, _ in KERNELS:
                        case = Case(kernel, direction, signature, device, software[kernel], clock)
                        trials += database.record_many(run, case.trials(seed, sweep))
                        clock += 60_000_000
            database.end_run(run, "finished")
    return trials


def look_up(path: Path, signatures: list[Signature], seed: int) -> dict[str, Any]:
    """Microseconds for one decision: the first time that a reader is asked for it, and again."""
    rng = random.Random(seed)
    keys = [(rng.choice(signatures), rng.choice(DIRECTIONS), rng.choice(DEVICES)) for _ in range(20_000)]
    with Database.open(path, read_only=True) as database:
        distinct = list(dict.fromkeys(keys))
        first, _ = timed_lookups(database, distinct)
        took, found = timed_lookups(database, keys)
    return {
        "lookups": len(keys),
        "lookups_found": found,
        "lookup_p50_us": round(statistics.median(took), 1),
        "lookup_p99_us": round(took[len(took) * 99 // 100], 1),
        "first_lookups": len(distinct),
        "first_lookup_p50_us": round(statistics.median(first), 1),
    }


def timed_lookups(database: Database, keys: Sequence[Any]) -> tuple[list[float], int]:
    """Microseconds of each, sorted; and how many were found."""
    took, found = [], 0
    for key in keys:
        start = time.perf_counter_ns()
        decision = database.decision(*key)
        took.append((time.perf_counter_ns() - start) / 1e3)
        found += decision is not None
    return sorted(took), found


def bytes_by_table(path: Path) -> dict[str, float]:
    """Mean bytes a trial: of the content of its row, and of the rest of the file."""
    with sqlite3.connect(path) as raw:
        columns = [row[1] for row in raw.execute("PRAGMA table_info(trial)")]
        sums = ", ".join(f"sum(length({name}))" for name in columns)
        count, *sizes = raw.execute(f"SELECT count(*), {sums} FROM trial").fetchone()
        (total,) = raw.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").fetchone()
    found = {name: round((size or 0) / count, 1) for name, size in zip(columns, sizes, strict=True)}
    found["row_and_page_overhead_indexes_and_other_tables"] = round(total / count - sum(found.values()), 1)
    return found


def timed(work: Any) -> tuple[float, Any]:
    """Seconds, and what ``work`` returned."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="the lab database with millions of measurements")
    parser.add_argument("--rows", type=int, default=10_000_000, help="trials, about")
    parser.add_argument("--folder", type=Path, required=True, help="where two databases may be")
    parser.add_argument("--reuse", action="store_true", help="the hosts' databases are there")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
