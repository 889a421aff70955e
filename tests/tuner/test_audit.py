"""The audit of what is refused before compiling: what is sampled, and what the compiler's word is taken for."""

import pytest

from attn_tune.kernels.registry import get_kernel
from attn_tune.schema import Device, Environment
from attn_tune.schema.trial import Resources, Status
from attn_tune.tuner import audit as module
from attn_tune.tuner.audit import Verdict, audit, sample_refused
from attn_tune.tuner.grid import load_grid
from attn_tune.tuner.plan import make_plan
from attn_tune.tuner.protocol import Lowered, Outcome

H200 = Device(
    platform="cuda", family="sm_90", variant="nvidia-h200", units=132, shared_bytes=232448
)


@pytest.fixture(scope="module")
def plan():
    return make_plan(
        load_grid("llama3-8b", lengths=["4x4k"]).points,
        kernels=[get_kernel("flash_attention/triton"), get_kernel("flash_attention/xla")],
        device=H200,
        environment=Environment(jax="0.12.0", jaxlib="0.12.0"),
    )


def test_the_sample_is_of_what_is_refused_and_fixed_by_its_seed(plan):
    refused = {
        (t.direction, t.part, str(t.config))
        for case in plan.cases
        for kernel in case.kernels
        for t in kernel.pruned
    }
    sampled = sample_refused(plan, 12, "a")
    assert len(sampled) == 12
    for ref, trial in sampled:
        part = ref.config[ref.part] if ref.part else ref.config
        assert (ref.direction, ref.part, str(part)) in refused
        assert (ref.kernel, part) == ("flash_attention/triton", trial.config)
    assert sampled == sample_refused(plan, 12, "a")
    assert sampled != sample_refused(plan, 12, "b")
    everything = sample_refused(plan, 10_000)
    assert len(everything) == plan.counts.pruned
    # A launch of a backward is compiled with the untuned config for the others.
    whole = [set(ref.config) for ref, _ in everything if ref.direction == "bwd"]
    assert all(names == {"dq", "dkv"} for names in whole)


ANSWERS = {
    Verdict.FITS: Lowered(program=b"", resources=Resources(spill_bytes=0), lower_ms=1.0),
    Verdict.SPILLS: Lowered(program=b"", resources=Resources(spill_bytes=8), lower_ms=1.0),
    Verdict.REFUSED: Outcome(status=Status.OUT_OF_RESOURCES, reason="too much shared\nstack"),
    Verdict.UNKNOWN: None,
}


def test_what_the_compiler_says_is_the_verdict(plan, monkeypatch):
    answers = list(ANSWERS.values())

    class Helpers:
        closed = False

        def __init__(self, cores):
            assert cores >= 3

        def expect(self, refs, device):
            assert (len(refs), device) == (4, H200)

        def take(self, ref, interrupt):
            return answers.pop(0)

        def close(self):
            Helpers.closed = True

    monkeypatch.setattr(module, "CompileAhead", Helpers)
    found = list(audit(plan, 4))
    assert [one.verdict for one in found] == list(ANSWERS)
    assert all(one.trial.reason for one in found)
    assert found[2].said == "too much shared"
    assert Helpers.closed
