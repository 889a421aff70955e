"""A worker's session in this process, on the real ``xla`` kernel."""

import dataclasses

import pytest

from attn_tune.kernels.registry import get_kernel, get_op
from attn_tune.schema.config import config_to_dict
from attn_tune.schema.trial import Status
from attn_tune.tuner.protocol import ConfigRef, Finals, MeasurePolicy, Phase, Run
from attn_tune.tuner.session import Session

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


@pytest.mark.parametrize(
    ("direction", "outputs"), [("fwd", {"out", "lse"}), ("bwd", {"dq", "dk", "dv"})]
)
def test_a_right_kernel_passes_and_is_timed(session, phases, point, device, direction, outputs):
    phases.clear()
    outcome = session.run(
        Run(ref=heuristic(point, device, direction), device=device, policy=POLICY)
    )
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


def test_finals_share_their_rounds(session, point, device):
    ref = heuristic(point, device, "fwd")
    request = Finals(refs=(ref, ref), device=device, round_id="r1", policy=POLICY)
    a, b = session.finals(request).outcomes
    assert a.measurement.round_id == b.measurement.round_id == "r1"
    assert len(a.measurement.samples_ns) == len(b.measurement.samples_ns) == 3
