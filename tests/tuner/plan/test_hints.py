"""Hints: what was proposed is tried first, within the limit, and proven like all else."""

import dataclasses

import pytest

from attn_tune.schema.config import config_digest
from attn_tune.schema.errors import UsageError
from attn_tune.schema.trial import Status
from attn_tune.tuner.plan.hints import Hint, Proposal, check_hint
from attn_tune.tuner.plan.planner import make_plan
from attn_tune.tuner.plan.strategies.effort import Effort, StrategyName
from attn_tune.tuner.plan.strategies.space import send
from tests.cli.fakes import SIGNATURE, FakeExecutor, fill
from tests.tuner.replay import one_launch, two_launches

SIZES = [2**n for n in range(3, 70)]
XLA = "flash_attention/xla"


def proposal(spec, size, signature=None):
    config = spec.searches["fwd"].config(size=size)
    return Proposal(kernel=spec.id, direction="fwd", config=config, signature=signature)


def kernel_plan(spec, point, device, environment, *hints, **more):
    plan = make_plan(
        [point],
        kernels=[spec],
        device=device,
        environment=environment,
        directions=["fwd"],
        hints=hints,
        **more,
    )
    return plan.cases[0].kernels[0]


def order(plan, effort):
    """The sizes in the order in which the search of the only part asks for them; every time is the size itself."""
    (part_plan,) = plan.parts
    search = effort.search(plan.space(part_plan, tried=part_plan.tried, limit=part_plan.todo))
    found, batch = [], next(search, None)
    while batch is not None:
        found += [candidate["size"] for candidate in batch]
        batch = send(search, tuple(float(candidate["size"]) for candidate in batch))
    return found


@pytest.mark.parametrize("strategy", StrategyName)
def test_every_strategy_begins_with_the_untuned_config_and_the_hints(point, device, environment, strategy):
    if strategy is StrategyName.SURROGATE:
        pytest.importorskip("sklearn")
    spec = one_launch("k", SIZES)
    effort = Effort(strategy=strategy, share=0.2)
    hints = [proposal(spec, 2**60), proposal(spec, 5)]
    plan = kernel_plan(spec, point, device, environment, *hints, effort=effort)
    found = order(plan, effort)
    # 5 is no candidate of the kernel, and a value that its knob may have.
    assert found[:3] == [4, 2**60, 5]
    assert len(found) == len(set(found)) == plan.parts[0].todo == effort.limit(len(SIZES) + 2)


def test_hints_count_within_the_limit_and_max_trials_bounds_them(point, device, environment):
    spec = one_launch("k", SIZES)
    hints = [proposal(spec, size) for size in SIZES[10:30]]
    effort = Effort(strategy=StrategyName.PORTFOLIO, share=0.01, max_trials=5)
    found = order(kernel_plan(spec, point, device, environment, *hints, effort=effort), effort)
    assert found == [4, *SIZES[10:14]]


def test_a_hint_is_tried_although_the_share_was_spent_before(point, device, environment):
    spec = one_launch("k", SIZES)
    effort = Effort(strategy=StrategyName.PORTFOLIO, share=0.1)
    spent = [{"size": size} for size in (4, *SIZES[:7])]
    known = {("", config_digest(config)): Status.INCORRECT for config in spent}
    more = {"effort": effort, "measured": lambda *asked: known}
    assert order(kernel_plan(spec, point, device, environment, **more), effort) == []
    plan = kernel_plan(spec, point, device, environment, proposal(spec, 2**50), proposal(spec, 8), **more)
    assert order(plan, effort) == [2**50]
    assert plan.todo == 1


def test_a_hint_that_cannot_run_here_is_a_trial_with_its_reason(point, device, environment):
    spec = one_launch("k", SIZES, infeasible=lambda p, d, c: "too big" if c.size > 2**64 else None)
    plan = kernel_plan(spec, point, device, environment, proposal(spec, 2**65 + 1))
    assert {(t.status, t.reason) for t in plan.pruned} == {(Status.UNSUPPORTED, "too big")}
    assert {"size": 2**65 + 1} in [t.config for t in plan.pruned]
    assert plan.parts[0].hinted == ()


def test_hints_of_near_problems_come_first_and_are_adapted(point, device, environment, problem):
    def adapt(tuned, asked, device, config):
        return type(config)(size=config.size * asked.q_len // tuned.q_len)

    spec = one_launch("k", SIZES)
    spec = dataclasses.replace(spec, searches={"fwd": dataclasses.replace(spec.searches["fwd"], adapt=adapt)})
    far, near = (dataclasses.replace(problem, q_len=n, kv_len=n).signature for n in (256, 32))
    hints = [
        proposal(spec, 2**40, signature=far),
        proposal(spec, 2**30, signature=near),
        proposal(spec, 2**20, signature=point.signature),
        proposal(spec, 2**10),
    ]
    plan = kernel_plan(spec, point, device, environment, *hints)
    assert order(plan, Effort())[1:5] == [2**20, 2**10, 2**29, 2**36]


def test_hints_are_for_their_own_kernel_and_direction(point, device, environment):
    spec, other = one_launch("k", SIZES), one_launch("other", SIZES)
    assert kernel_plan(spec, point, device, environment, proposal(other, 2**50)).parts[0].hinted == ()
    back = dataclasses.replace(proposal(spec, 2**50), direction="bwd")
    assert kernel_plan(spec, point, device, environment, back).parts[0].hinted == ()


def test_a_hint_of_a_direction_of_several_launches_is_a_hint_for_each(point, device, environment):
    spec = two_launches("k", SIZES, SIZES)
    search = spec.searches["fwd"]
    whole = search.heuristic(None, device)
    changed = {name: dataclasses.replace(getattr(whole, name), size=2**50) for name in search.parts}
    hint = Proposal(kernel=spec.id, direction="fwd", config=dataclasses.replace(whole, **changed), signature=None)
    plan = kernel_plan(spec, point, device, environment, hint)
    assert [one.hinted for one in plan.parts] == [(config_digest({"size": 2**50}),)] * 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kernel": "flash_attention/none"}, "no kernel here"),
        ({"kernel": "none/xla"}, "no kernel here"),
        ({"direction": "sideways"}, "no kernel here that implements sideways"),
        ({"config": {"chunk_q": 64, "chunk_k": 64, "warps": 4}}, "no knob 'warps'"),
        ({"config": {"chunk_q": 64}}, "needs the knob 'chunk_k'"),
        ({"config": {"chunk_q": -64, "chunk_k": 64}}, "must be a positive integer"),
        ({"signature": "flash_attention/v1 b=1"}, "needs the field 't'"),
    ],
)
def test_a_hint_that_nothing_here_can_use_says_why(changes, reason):
    good = Hint(kernel=XLA, direction="fwd", config={"chunk_q": 64, "chunk_k": 64}, signature=SIGNATURE)
    assert check_hint(good).config.chunk_q == 64
    with pytest.raises(UsageError, match=reason):
        check_hint(dataclasses.replace(good, **changes))


def test_a_sweep_runs_the_hint_first_and_stores_its_trial(tmp_path):
    config = {"chunk_q": 48, "chunk_k": 48}
    hint = check_hint(Hint(kernel=XLA, direction="fwd", config=config, signature=SIGNATURE))
    executor = FakeExecutor()
    outcome = fill(tmp_path / "lab.db", executor, directions=("fwd",), hints=(hint,))
    assert executor.ran[1] == config_digest(config)
    assert outcome.ending == "finished"
    # A wrong one decides nothing, as any other.
    wrong = fill(tmp_path / "wrong.db", FakeExecutor(status=Status.INCORRECT), directions=("fwd",), hints=(hint,))
    assert wrong.decisions == ()
