"""A real Ray cluster of two nodes on this machine: an actor is killed, then a whole node, and the sweep completes."""

import dataclasses
import importlib.util
import logging
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.schema.trial import Stage, Status, Trial
from attn_tune.tuner.case import GridPoint
from attn_tune.tuner.plan import make_plan
from attn_tune.tuner.progress import Progress, ProgressKind
from attn_tune.tuner.protocol import MeasurePolicy
from attn_tune.tuner.ray_cluster import ray_fleet
from attn_tune.tuner.sweep import sweep

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="ray is not installed (the extra 'ray')"
    ),
]
ROOT = Path(__file__).resolve().parents[2]
PLANTED = ROOT / "tests" / "planted"
POLICY = MeasurePolicy(samples=3, max_s=0.1, rounds=3, rounds_max_s=0.5)
# Long enough for a new actor process on a loaded machine, which takes a few seconds.
PLACE_S = 15.0
LENGTHS = (16, 17, 18)


@pytest.fixture
def cluster(monkeypatch):
    """One processor on each node; they inherit this process's environment."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(PLANTED)]))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("XLA_FLAGS", f"{os.environ['XLA_FLAGS']} --xla_cpu_multi_thread_eigen=false")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.second = made.add_node(num_cpus=1)
    ray.init(address=made.address, log_to_driver=False, logging_level=logging.CRITICAL)
    yield made
    ray.shutdown()
    made.shutdown()


def actors_of(node) -> list[int]:
    """The process ids of the actors that the node's raylet has started."""
    (raylet,) = (info.process.pid for info in node.all_processes["raylet"])
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            title = (path / "cmdline").read_text()
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == raylet and title.startswith("ray::DeviceActor"):
            found.append(int(path.name))
    return found


@pytest.mark.slow
def test_a_sweep_survives_the_loss_of_an_actor_and_of_a_node(cluster, planted, problem: Problem):
    points = [
        GridPoint(
            name=f"case{s}",
            op="flash_attention",
            signature=dataclasses.replace(problem, kv_len=s).signature,
        )
        for s in LENGTHS
    ]
    events, killed = [], []
    with ray_fleet(place_s=PLACE_S) as fleet:
        assert len(fleet.executors) == 2
        identity = fleet.identify()
        plan = make_plan(
            points,
            kernels=[planted["quick"]],
            device=identity.device,
            environment=identity.environment,
            directions=["fwd"],
        )
        for event in sweep(plan, fleet, policy=POLICY):
            events.append(event)
            if isinstance(event, Trial) and not killed:
                killed += actors_of(cluster.head_node)
                os.kill(killed[0], signal.SIGKILL)
            started = {e.case for e in events if isinstance(e, Progress) and e.case}
            if len(killed) == 1 and isinstance(event, Trial) and len(started) == 2:
                killed.append(cluster.second)
                cluster.remove_node(cluster.second, allow_graceful=False)
    assert len(killed) == 2
    last = events[-1]
    assert (last.kind, last.reason) == (ProgressKind.SWEEP_FINISHED, "finished")
    trials = [event for event in events if isinstance(event, Trial)]
    planned = Counter(
        (case.case.signature.text, part.part, repr(sorted(config.items())))
        for case in plan.cases
        for kernel in case.kernels
        for part in kernel.parts
        for config in part.candidates
    )
    searched = [t for t in trials if t.stage is Stage.SEARCH]
    assert (
        Counter((t.signature.text, t.part, repr(sorted(t.config.items()))) for t in searched)
        == planned
    )
    assert Counter(t.status for t in searched) == {Status.OK: 6, Status.INCORRECT: 6}
    assert {t.signature for t in trials if t.stage is Stage.FINAL} == {p.signature for p in points}
    returned = [
        e for e in events if isinstance(e, Progress) and e.kind is ProgressKind.CASE_RETURNED
    ]
    assert len(returned) == 1
