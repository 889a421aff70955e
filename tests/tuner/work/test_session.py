"""A worker's session in this process, on the real ``xla`` kernel."""

import dataclasses

import pytest

from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.registry import get_op
from attn_tune.schema.config import config_to_dict
from attn_tune.schema.trial import Status, twin_round
from attn_tune.tuner.protocol import ConfigRef, Finals, MeasurePolicy, Phase, Run
from attn_tune.tuner.work.session import Session

POLICY = MeasurePolicy(samples=3, max_s=0.1, rounds=3, rounds_max_s=1.0)


@pytest.fixture(scope="module")
def phases() -> list[Phase]:
    return []


@pytest.fixture(scope="module")
def session(phases) -> Session:
    return Session(lambda entering: phases.append(entering.phase))


def heuristic(point, device, direction: str) -> ConfigRef:
    search = get_kernel("flash_attention/xla").searches[direction]
    problem = get_op(point.op).from_signature(point.signature)
    return ConfigRef(
        kernel="flash_attention/xla",
        signature=point.signature,
        direction=direction,
        config=config_to_dict(search.heuristic(problem, device)),
    )


@pytest.mark.parametrize(("direction", "outputs"), [("fwd", {"out", "lse"}), ("bwd", {"dq", "dk", "dv"})])
def test_a_right_kernel_passes_and_is_timed(session, phases, point, device, direction, outputs):
    phases.clear()
    outcome = session.run(Run(ref=heuristic(point, device, direction), device=device, policy=POLICY))
    assert outcome.status is Status.OK, outcome.reason
    assert {e.output for e in outcome.errors} == outputs
    assert all(e.ratio <= 1 for e in outcome.errors)
    assert len(outcome.measurement.samples_ns) == 3
    assert outcome.resources.code_digest.startswith("b2:")
    assert set(outcome.phases_ms) == {"prepare", "compile", "validate", "measure"}
    assert phases == [
        Phase.PREPARE,
        Phase.PREPARE,
        Phase.COMPILE,
        Phase.VALIDATE,
        Phase.MEASURE,
    ]


def test_proving_alone_measures_nothing(session, phases, point, device, problem):
    phases.clear()
    odd = dataclasses.replace(problem, q_len=13, kv_len=9)
    ref = dataclasses.replace(heuristic(point, device, "bwd"), problem=odd)
    outcome = session.run(Run(ref=ref, device=device, measure=False, seeds=(5,), policy=POLICY))
    assert outcome.status is Status.OK
    assert outcome.measurement is None
    assert phases == [Phase.PREPARE, Phase.COMPILE, Phase.VALIDATE]
    # The signature's case is still there.
    session.run(Run(ref=heuristic(point, device, "bwd"), device=device, policy=POLICY))
    phases.clear()
    session.run(Run(ref=ref, device=device, measure=False, seeds=(5,), policy=POLICY))
    assert phases == [Phase.COMPILE, Phase.VALIDATE]


@pytest.mark.parametrize(("q_len", "kv_len"), [(421, 197), (389, 389)])
def test_queries_that_see_one_key_do_not_condemn_a_float32_gradient(session, point, device, problem, q_len, kv_len):
    """Their gradient is a zero between large terms. Found by sweeps, which had no valid config left."""
    long = dataclasses.replace(
        problem,
        batch=2,
        q_len=q_len,
        kv_len=kv_len,
        num_q_heads=2,
        num_kv_heads=2,
        head_dim=32,
        v_head_dim=32,
        dtype="float32",
    )
    ref = dataclasses.replace(heuristic(point, device, "bwd"), problem=long)
    request = Run(ref=ref, device=device, measure=False, seeds=(1009, 3), policy=POLICY)
    outcome = session.run(request)
    assert outcome.status is Status.OK, outcome.reason
    # A rule that let everything pass would be no rule.
    assert max(e.ratio for e in outcome.errors) > 0.05


def test_finals_share_their_rounds(session, point, device):
    ref = heuristic(point, device, "fwd")
    request = Finals(refs=(ref, ref), device=device, round_id="r1", policy=POLICY)
    answer = session.finals(request)
    a, b = answer.outcomes
    assert a.measurement.round_id == b.measurement.round_id == "r1"
    assert len(a.measurement.samples_ns) == len(b.measurement.samples_ns) == 3
    # The config that took part twice, under a name of its own.
    assert answer.twin.round_id == twin_round("r1")
    assert len(answer.twin.samples_ns) == 3


def test_a_config_that_is_wrong_in_the_finals_is_not_timed(session, planted, point, device):
    refs = tuple(
        ConfigRef(
            kernel="flash_attention/planted_wrong",
            signature=point.signature,
            direction="fwd",
            config={"defect": defect, "turn": 1},
        )
        for defect in ("none", "wrong")
    )
    request = Finals(refs=refs, device=device, round_id="r1", policy=POLICY, twin=1)
    answer = session.finals(request)
    assert [o.status for o in answer.outcomes] == [Status.OK, Status.INCORRECT]
    assert [o.measurement is None for o in answer.outcomes] == [False, True]
    assert "out is wrong" in answer.outcomes[1].reason
    assert answer.twin is None


def test_finals_with_wrong_configs_alone_time_nothing(session, planted, point, device):
    ref = ConfigRef(
        kernel="flash_attention/planted_wrong",
        signature=point.signature,
        direction="fwd",
        config={"defect": "wrong"},
    )
    answer = session.finals(Finals(refs=(ref,), device=device, round_id="r1", policy=POLICY))
    assert [o.status for o in answer.outcomes] == [Status.INCORRECT]


def test_a_program_that_was_tried_is_not_run(session, point, device):
    run = Run(ref=heuristic(point, device, "fwd"), device=device, policy=POLICY)
    program = session.run(run).resources.code_digest
    again = session.run(dataclasses.replace(run, tried={program: "the first one"}))
    assert again.status is Status.UNSUPPORTED
    assert "the first one" in again.reason
    assert again.measurement is None
