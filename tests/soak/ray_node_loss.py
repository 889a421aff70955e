"""A sweep on a two-node Ray cluster, one node of which is killed midway.

    python -m tests.soak.ray_node_loss --out results/cpu

The cluster is real and local: each node has its own raylet, one CPU and one actor with one worker process. The second
node's raylet is killed (no warning, no draining) once both nodes are in the midst of a case. Checked, with exit
status 1 if it does not hold: the sweep finishes; as many configs have a search trial as were asked for, none is lost
and none is done twice; every case has its finals; the database's integrity check is clean. Times are those of a CPU
shared by both nodes, and mean nothing.
"""

import argparse
import json
import logging
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SIGNATURE = "flash_attention/v1 b=1 t={s} s={s} n=1 k=1 h=16 v=16 dtype=float32"
LENGTHS = (200, 264, 136, 328)
# Set before the cluster starts: its nodes inherit them.
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def main() -> int:
    args = _arguments()
    os.environ.update(ENVIRONMENT)
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    doomed = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.CRITICAL)
    log: list[str] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = _sweep(args, Path(folder) / "lab.db", log, lambda: _kill(cluster, doomed))
    finally:
        ray.shutdown()
        cluster.shutdown()
    checks = {
        "the sweep finished": found["ending"] == "finished",
        "no config was tried twice": set(found["tried"].values()) == {1},
        "as many configs of the plan were tried as asked for": (
            found["tried"].keys() <= found["planned"].keys() and found["tried"].total() == found["owed"]
        ),
        "every case has its finals": found["cases_with_finals"] == found["cases"],
        "the case of the lost node was given back, once": found["returned"] == 1,
        "the database is sound": not found["integrity"],
    }
    for text, good in checks.items():
        _say(log, f"{'ok  ' if good else 'FAIL'}  {text}")
    _say(log, f"{found['cases']} cases, {found['tried'].total()} configs")
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "ray_node_loss.txt").write_text("\n".join(log) + "\n")
    return 0 if all(checks.values()) else 1


def _sweep(args, database: Path, log: list[str], kill) -> dict:
    """The sweep as the command runs it, and what is in the database at its end."""
    import threading

    import jax
    import ray

    from attn_tune.commands.sweeps.database_sweep import SweepRequest, open_lab, run_sweep
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.schema import Stage, Trial
    from attn_tune.tuner.plan.grid import load_grid
    from attn_tune.tuner.plan.strategies.effort import Effort
    from attn_tune.tuner.run.fleet.ray_cluster import ray_fleet
    from attn_tune.tuner.run.progress import PhaseEntered, ProgressKind

    points = [load_grid(SIGNATURE.format(s=s)).points[0] for s in LENGTHS]
    effort = Effort(max_trials=args.max_trials)
    request = SweepRequest(
        points=points,
        kernels=(get_kernel("flash_attention/xla"),),
        directions=("fwd",),
        database=database,
        effort=effort,
    )
    versions = f"ray {ray.__version__}, jax {jax.__version__}, Python {platform.python_version()}"
    _say(log, f"{versions}, {platform.machine()} with {os.cpu_count()} cores")
    begin, midway, killed, returned = time.monotonic(), {}, False, 0

    def watch(event) -> None:
        nonlocal killed, returned
        now = f"{time.monotonic() - begin:6.1f} s"
        if isinstance(event, PhaseEntered):
            return
        if isinstance(event, Trial):
            where = f"s={event.signature.values['s']}"
            _say(
                log,
                f"{now}  {where} {event.direction}: {event.stage} {event.config} {event.status}",
            )
            if event.stage is Stage.SEARCH:
                midway[event.signature] = midway.get(event.signature, 0) + 1
            if len(midway) == 2 and not killed:
                killed = True
                _say(log, f"{now}  *** the second node is killed ***")
                kill()
        elif event.case is not None:
            where = f"s={event.case.signature.values['s']} {event.case.direction}"
            _say(log, f"{now}  {event.kind} {where} {event.reason[:120]}".rstrip())
            returned += event.kind is ProgressKind.CASE_RETURNED
            if event.kind is ProgressKind.FINALS_STARTED:
                midway.pop(event.case.signature, None)
        else:
            _say(log, f"{now}  {event.kind} {event.reason} {event.done}/{event.total}")

    with ray_fleet(place_s=args.place_s) as fleet:
        outcome = run_sweep(request, fleet, watch=watch, stop=threading.Event())
    with open_lab(database) as lab:
        trials = [t for p in points for t in lab.trials(signature=p.signature)]
        integrity = lab.integrity_check()
    search = [t for t in trials if t.stage is Stage.SEARCH]
    finals = {(t.signature, t.direction) for t in trials if t.stage is Stage.FINAL}
    planned = Counter(
        (case.case.label, part.part, json.dumps(config, sort_keys=True))
        for case in outcome.plan.cases
        for kernel in case.kernels
        for part in kernel.parts
        for config in part.candidates
    )
    labels = {(c.case.signature, c.case.direction): c.case.label for c in outcome.plan.cases}
    tried = Counter(
        (labels[t.signature, t.direction], t.part, json.dumps(dict(t.config), sort_keys=True)) for t in search
    )
    return {
        "ending": outcome.ending,
        "cases": len(outcome.plan.cases),
        "planned": planned,
        "owed": sum(
            effort.limit(len(part.candidates))
            for case in outcome.plan.cases
            for kernel in case.kernels
            for part in kernel.parts
        ),
        "tried": tried,
        "cases_with_finals": len(finals),
        "returned": returned,
        "integrity": integrity,
    }


def _kill(cluster, node) -> None:
    cluster.remove_node(node, allow_graceful=False)


def _say(log: list[str], text: str) -> None:
    print(text, flush=True)
    log.append(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--max-trials", type=int, default=6, help="configs of each kernel and part")
    parser.add_argument("--place-s", type=float, default=15.0, help="seconds to wait for another place for an actor")
    parser.add_argument("--out", type=Path, help="a folder for ray_node_loss.txt")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
