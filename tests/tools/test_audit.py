"""The audit of targets over a fake compiler: its samples, and the claims that it finds wrong."""

import pytest

from attn_tune.kernels.registry import get_kernel
from attn_tune.schema import Environment, Shortage
from attn_tune.schema.trial import Resources, Status
from attn_tune.tuner.offline.compilers.protocol import Compiled
from attn_tune.tuner.offline.target import find_target
from attn_tune.tuner.plan.dominance import needs_at_least
from attn_tune.tuner.plan.grid import load_grid
from attn_tune.tuner.plan.planner import make_plan
from tools.audit.claims import Claim, audit_target

GROWS = ("block_q", "block_k", "num_stages")
FITS = Compiled(status=Status.COMPILED, resources=Resources(registers=64, spill_bytes=0))


@pytest.fixture(scope="module")
def plan():
    return make_plan(
        load_grid("llama3-8b", lengths=["4x4k"]).points,
        kernels=[get_kernel("flash_attention/triton")],
        device=find_target("sm_120").device,
        environment=Environment(jax="1", jaxlib="1"),
    )


class OwnCompiler:
    """Answers by two rules: what launches alone come to, and what whole programs do."""

    def __init__(self, alone=lambda own: FITS, whole=lambda own: FITS):
        self.rules = {False: alone, True: whole}
        self.asked = {False: [], True: []}
        self.keys = set()

    def compile(self, refs, *, whole=False):
        for index, ref in enumerate(refs):
            own = ref.part_config
            self.asked[whole].append(own)
            if not whole:
                self.keys.add(ref.key)
            yield index, self.rules[whole](own)


def lacking(own):
    """Compiles configs of one stage; refuses more stages for lack of shared memory."""
    if own.get("num_stages", 1) < 2:
        return FITS
    lack = Shortage(resource="shared memory", needed=2, limit=1)
    return Compiled(status=Status.OUT_OF_RESOURCES, reason="too much", shortage=lack)


def test_configs_that_a_sweep_calls_feasible_are_compiled_whole_and_no_others(plan):
    compiler = OwnCompiler(alone=lacking)
    found = list(audit_target(plan, compiler, 8, claims=[Claim.FEASIBLE]))
    assert len(found) == 8
    assert all(one.verdict == "right" for one in found)
    assert all(own.get("num_stages", 1) < 2 for own in compiler.asked[True])
    # Those that did not fit alone were replaced by others.
    assert len(compiler.asked[False]) > 8


def test_a_whole_program_that_fails_makes_the_claim_wrong(plan):
    compiler = OwnCompiler(whole=lacking)
    found = list(audit_target(plan, compiler, 30, claims=[Claim.FEASIBLE]))
    wrong = [one for one in found if one.verdict == "wrong"]
    assert wrong
    assert len(wrong) < len(found)
    for one in found:
        own = one.ref.part_config
        assert (one.verdict == "wrong") == (own.get("num_stages", 1) >= 2)


def test_a_whole_program_that_took_too_long_is_neither_right_nor_wrong(plan):
    late = Compiled(status=Status.TIMED_OUT, reason="late")
    (one,) = audit_target(plan, OwnCompiler(whole=lambda own: late), 1, claims=[Claim.FEASIBLE])
    assert one.verdict == "unknown"


def test_a_refused_config_that_fits_is_a_wrong_refusal_unless_it_spills(plan):
    spilling = Compiled(status=Status.COMPILED, resources=Resources(registers=255, spill_bytes=400))
    for answer, verdict in ((FITS, "wrong"), (spilling, "right"), (lacking({"num_stages": 2}), "right")):
        compiler = OwnCompiler(whole=lambda own, answer=answer: answer)
        (one,) = audit_target(plan, compiler, 1, claims=[Claim.REFUSED])
        assert one.reason
        assert one.verdict == verdict


def test_configs_that_dominance_rules_out_are_compiled_only_by_the_audit(plan):
    compiler = OwnCompiler(alone=lacking)
    found = list(audit_target(plan, compiler, 20, claims=[Claim.FEASIBLE, Claim.DOMINATED]))
    dominated = [one for one in found if one.claim is Claim.DOMINATED]
    failed = [own for own in compiler.asked[False] if own.get("num_stages", 1) >= 2]
    assert dominated
    for one in dominated:
        own = one.ref.part_config
        assert one.ref.key not in compiler.keys
        assert any(needs_at_least(own, smaller, [name for name in GROWS if name in smaller]) for smaller in failed)
        # Every one of them compiles here, so that each claim is found to be wrong.
        assert one.verdict == "wrong"


def test_the_sample_of_an_audit_is_fixed_by_its_seed(plan):
    def configs(seed):
        found = audit_target(plan, OwnCompiler(), 6, seed=seed, claims=[Claim.FEASIBLE])
        return [one.ref.key for one in found]

    assert configs("a") == configs("a")
    assert configs("a") != configs("b")
