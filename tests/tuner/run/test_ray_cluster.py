"""A real Ray cluster of two nodes on this machine: an actor is killed, then a whole node, and the sweep completes."""

import contextlib
import dataclasses
import importlib.util
import logging
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.trial import Stage, Status, Trial
from attn_tune.tuner.plan.case import GridPoint
from attn_tune.tuner.plan.planner import make_plan
from attn_tune.tuner.protocol import MeasurePolicy, Phase
from attn_tune.tuner.run.fleet.ray_cluster import ray_fleet
from attn_tune.tuner.run.progress import Progress, ProgressKind
from attn_tune.tuner.run.sweep import sweep
from tests.patience import PATIENCE_S, until

# The loss of an actor and of a node is proven with stand-ins in test_ray_executor.py and test_fleet.py.
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.ray,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed (the extra 'ray')"),
]
ROOT = Path(__file__).resolve().parents[3]
PLANTED = ROOT / "tests" / "planted"
POLICY = MeasurePolicy(samples=3, max_s=0.1, rounds=3, rounds_max_s=0.5)
# The executor whose node is gone waits this long for a place that there cannot be.
NO_PLACE_S = 1.0
# Ray's own limits: a process that gets no time for a while must not count as lost, and a lost one is noticed soon.
LIMITS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Memory that other processes fill is no reason to kill an actor here.
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": str(round(PATIENCE_S * 1000)),
    "RAY_agent_register_timeout_ms": str(round(PATIENCE_S * 1000)),
    **{
        f"RAY_{name}": str(round(PATIENCE_S))
        for name in (
            "gcs_rpc_server_connect_timeout_s",
            "gcs_rpc_server_reconnect_timeout_s",
            "gcs_server_port_wait_time_s",
            "gcs_server_request_timeout_seconds",
            "py_gcs_connect_timeout_s",
            "worker_register_timeout_seconds",
        )
    },
}
LENGTHS = (16, 17, 18)


@pytest.fixture
def cluster(monkeypatch):
    """One processor on each node; they inherit this process's environment."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(PLANTED)]))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    for name, value in LIMITS.items():
        monkeypatch.setenv(name, value)
    import ray
    from ray._private import services
    from ray.cluster_utils import Cluster

    # Ray waits half a minute for the start of a node, with any settings.
    monkeypatch.setattr(services, "wait_for_node", patient(services.wait_for_node))
    monkeypatch.setattr(services, "get_node", until_it_works(services.get_node))
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.second = made.add_node(num_cpus=1)
    ray.init(address=made.address, log_to_driver=False, logging_level=logging.CRITICAL)
    yield made
    ray.shutdown()
    made.shutdown()


def patient(wait_for_node):
    return lambda address, socket, timeout: wait_for_node(address, socket, PATIENCE_S)


def until_it_works(get_node):
    def get(*args):
        found = []

        def there() -> bool:
            with contextlib.suppress(RuntimeError):
                found.append(get_node(*args))
            return bool(found)

        until(there)
        return found[0]

    return get


def actor_of(executor) -> dict:
    """Ray's record of an executor's actor: its state, its process and its node."""
    from ray._private.state import actors

    return actors(executor._actor._actor_id.hex())


def kill_actor(executor) -> None:
    """Kills the actor's process, and waits until Ray has started another one in its place."""
    old = actor_of(executor)["Pid"]
    os.kill(old, signal.SIGKILL)

    def replaced() -> bool:
        now = actor_of(executor)
        return now["State"] == "ALIVE" and now["Pid"] != old

    until(replaced)


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
    events, killed, told = [], [], []
    with ray_fleet(place_s=PATIENCE_S) as fleet:
        identity = fleet.identify()
        # Each node has one of the two; which one is Ray's choice.
        by_node = {actor_of(e)["Address"]["NodeID"]: e for e in fleet.executors}
        first, second = by_node[cluster.head_node.node_id], by_node[cluster.second.node_id]
        plan = make_plan(
            points,
            kernels=[planted["quick"]],
            device=identity.device,
            environment=identity.environment,
            directions=["fwd"],
        )
        for event in sweep(plan, fleet, policy=POLICY, on_phase=told.append):
            events.append(event)
            if isinstance(event, Trial) and not killed:
                kill_actor(first)
                killed.append(first)
            started = {e.case for e in events if isinstance(e, Progress) and e.case}
            if len(killed) == 1 and isinstance(event, Trial) and len(started) == 2:
                # The first node is full: there is no other place for the second actor.
                second._place_s = NO_PLACE_S
                cluster.remove_node(cluster.second, allow_graceful=False)
                killed.append(second)
    assert killed == [first, second]
    # Which of the short ones are seen depends on the moment of a look.
    assert {one.place for one in told} == {0, 1}
    assert {one.phase for one in told} >= {Phase.PREPARE, None}
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
    assert Counter((t.signature.text, t.part, repr(sorted(t.config.items()))) for t in searched) == planned
    assert Counter(t.status for t in searched) == {Status.OK: 6, Status.INCORRECT: 6}
    assert {t.signature for t in trials if t.stage is Stage.FINAL} == {p.signature for p in points}
    returned = [e for e in events if isinstance(e, Progress) and e.kind is ProgressKind.CASE_RETURNED]
    assert len(returned) == 1
