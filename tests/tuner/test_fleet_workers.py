"""A fleet of real worker processes: a worker lives and ends with its fleet, not with the call that started it."""

import dataclasses
import os
import threading

import pytest

from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.schema.trial import Stage, Status, Trial, main_round
from attn_tune.tuner.case import GridPoint
from attn_tune.tuner.executor import IsolatedExecutor
from attn_tune.tuner.fleet import Fleet
from attn_tune.tuner.plan import make_plan
from attn_tune.tuner.protocol import MeasurePolicy
from attn_tune.tuner.sweep import sweep
from tests.patience import PATIENCE_S

POLICY = MeasurePolicy(samples=3, max_s=0.1, rounds=3, rounds_max_s=0.5)


class Punctual(IsolatedExecutor):
    """Begins its first config when the other one does, so that each has one of two cases."""

    def __init__(self, together: threading.Barrier):
        super().__init__()
        self.together, self.met = together, False

    def run(self, request):
        if not self.met:
            self.together.wait(PATIENCE_S)
        self.met = True
        return super().run(request)


def test_two_workers_share_a_sweep_and_end_with_the_fleet(planted, problem: Problem):
    points = [
        GridPoint(
            name=f"case{s}",
            op="flash_attention",
            signature=dataclasses.replace(problem, kv_len=s).signature,
        )
        for s in (16, 17)
    ]
    together = threading.Barrier(2)
    workers = Punctual(together), Punctual(together)
    with Fleet(workers) as fleet:
        identity = fleet.identify()
        pids = [worker.worker_pid for worker in workers]
        assert len({*pids, None}) == 3
        plan = make_plan(
            points,
            kernels=[planted["quick"]],
            device=identity.device,
            environment=identity.environment,
            directions=["fwd"],
        )
        trials = [e for e in sweep(plan, fleet, policy=POLICY) if isinstance(e, Trial)]
        # Only the finals had workers of their own, and those went on.
        later = [worker.worker_pid for worker in workers]
        assert len({*pids, *later, None}) == 5
    for pid in (*pids, *later):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    finals = [t for t in trials if t.stage is Stage.FINAL]
    assert {t.signature for t in finals} == {point.signature for point in points}
    assert len({main_round(t.measurement.round_id) for t in finals}) == 2
    wrong = [t for t in trials if t.status is Status.INCORRECT]
    assert sorted(t.config["defect"] for t in wrong) == ["nan", "nan", "wrong", "wrong"]
