"""A config that is wrong only while it is timed is found, in the search and in the finals."""

import jax.numpy as jnp
import pytest

from attn_tune.ops.contract import load
from attn_tune.ops.registry import get_op
from attn_tune.schema.trial import Status
from attn_tune.tuner.protocol import ConfigRef, Finals, MeasurePolicy, Run
from attn_tune.tuner.work import session as session_module, timed_outputs
from attn_tune.tuner.work.case_functions import compile_case_functions
from attn_tune.tuner.work.session import Session
from attn_tune.tuner.work.timed_outputs import TimedOutputs
from attn_tune.tuner.work.timers.host import HostTimer
from attn_tune.tuner.work.timers.records import Record
from attn_tune.tuner.work.timers.timer import Launch
from attn_tune.tuner.work.timers.traced import TracedTimer

POLICY = MeasurePolicy(warmup=2, samples=4, max_s=60.0, early_stops=(), rounds=4, rounds_max_s=60.0)
# Of a search: two runs on each of two seeds, then the warm-up. Of finals, which have one seed, two runs less.
SECOND_TIMED = {"search": 7, "finals": 5}


@pytest.fixture(scope="module")
def session() -> Session:
    return Session()


@pytest.fixture(scope="module")
def case(problem):
    return compile_case_functions(get_op("flash_attention"), problem, "fwd").make(0)


@pytest.fixture(scope="module")
def right(case, problem):
    return dict(load(get_op("flash_attention").baseline)(problem, "fwd", case.inputs))


def ref(point, defect, turn=1):
    return ConfigRef(
        kernel="flash_attention/planted_wrong",
        signature=point.signature,
        direction="fwd",
        config={"defect": defect, "turn": turn},
    )


def test_one_wrong_output_among_the_timed_ones_is_enough_in_a_search(session, planted, point, device):
    slips = ref(point, "slips", SECOND_TIMED["search"])
    outcome = session.run(Run(ref=slips, device=device, policy=POLICY))
    assert outcome.status is Status.INCORRECT
    assert outcome.measurement is None
    assert outcome.repeatable is False
    assert "out is wrong" in outcome.reason
    assert "1 of " in outcome.reason
    assert "timed runs gave other bits" in outcome.reason


def finals(session, point, device, *refs, twin=0):
    request = Finals(refs=refs, device=device, round_id="r", policy=POLICY, twin=twin)
    return session.finals(request)


@pytest.mark.parametrize("room", [timed_outputs.PROVEN_BYTES, 0], ids=["bits", "rule"])
def test_one_wrong_output_among_the_timed_ones_is_enough_in_the_finals(
    session, planted, point, device, monkeypatch, room
):
    """If there is no room for the proven outputs, the rule alone judges."""
    monkeypatch.setattr(session_module, "PROVEN_BYTES", room)
    # It takes part twice, so it is warmed up twice.
    slips = ref(point, "slips", SECOND_TIMED["finals"] + POLICY.warmup)
    answer = finals(session, point, device, ref(point, "none"), slips, twin=1)
    assert [o.status for o in answer.outcomes] == [Status.OK, Status.INCORRECT]
    assert [o.measurement is None for o in answer.outcomes] == [False, True]
    assert answer.twin is None
    assert "out is wrong" in answer.outcomes[1].reason


def test_different_bits_in_one_timed_run_make_a_config_unrepeatable(session, planted, point, device):
    wavers = ref(point, "wavers", SECOND_TIMED["search"])
    outcome = session.run(Run(ref=wavers, device=device, policy=POLICY))
    assert (outcome.status, outcome.repeatable) == (Status.OK, False)
    assert outcome.measurement is not None
    wavers = ref(point, "wavers", SECOND_TIMED["finals"])
    good, bad = finals(session, point, device, ref(point, "none"), wavers).outcomes
    assert (good.status, good.repeatable) == (Status.OK, True)
    assert (bad.status, bad.repeatable) == (Status.OK, False)


def test_different_bits_in_the_second_run_make_a_config_unrepeatable(session, planted, point, device):
    request = Run(ref=ref(point, "wavers", 1), device=device, measure=False)
    outcome = session.run(request)
    assert (outcome.status, outcome.repeatable) == (Status.OK, False)
    assert session.run(Run(ref=ref(point, "none"), device=device)).repeatable is True


def test_only_outputs_that_differ_are_judged_again(case, right, monkeypatch):
    judged = []

    def judge(*args):
        judged.append(args)
        return real(*args)

    real = timed_outputs.judge
    monkeypatch.setattr(timed_outputs, "judge", judge)
    timed = TimedOutputs(case)
    timed.prove(right)
    timed.check([right, right])
    assert (timed.verdict.correct, timed.verdict.repeatable, judged) == (True, True, [])
    close = {**right, "lse": right["lse"].at[0, 0, 0].multiply(1 + 1e-6)}
    timed.check([right, close])
    assert (timed.verdict.correct, timed.verdict.repeatable, len(judged)) == (True, False, 1)
    timed.check([{**right, "out": jnp.zeros_like(right["out"])}, right])
    assert not timed.verdict.correct
    assert timed.verdict.timed == "2 of 6 timed runs gave other bits than the proven run"


def test_the_host_timer_checks_every_repeat_and_keeps_few():
    held, most = [], []

    def run():
        return {"x": jnp.zeros(3)}

    def check(outputs):
        most.append(len(outputs))
        held.extend(outputs)

    launch = Launch(run=run, repeats=7, check=check, output_bytes=2**30 // 3)
    HostTimer().sample([launch, launch], None)
    assert most == [3, 3, 1] * 2
    assert len(held) == 14


def test_a_traced_timer_checks_after_its_session_and_keeps_few():
    events = []

    def trace(work):
        events.append("begin")
        work()
        events.append("end")
        return [Record("k", 10)] * (events[::-1].index("begin") - 1)

    def run():
        events.append("run")
        return ()

    def check(outputs):
        events.append("check")

    launch = Launch(run=run, check=check, output_bytes=2**29)
    assert TracedTimer("cupti", trace).sample([launch] * 3, None) == [10] * 3
    session = ["begin", "run", "run", "end", "check", "check", "begin", "run", "end", "check"]
    assert events == ["begin", "run", "end", *session]
