"""Plans: what is tried, what was tried before, what never will be."""

import dataclasses
import math

import pytest

from attn_tune.schema.config import config_digest
from attn_tune.schema.errors import NoDataError
from attn_tune.schema.trial import Measurement, Protocol, Stage, Status, Trial
from attn_tune.tuner.plan.case import GridPoint
from attn_tune.tuner.plan.planner import make_plan
from attn_tune.tuner.plan.strategies.effort import Effort
from tests.tuner.replay import kernel, one_launch, two_launches


def todo(plan) -> list[tuple[str, list[int]]]:
    """(part, sizes still to try) of the first kernel of the first case."""
    return [(part.part, [c["size"] for c in part.candidates]) for part in plan.cases[0].kernels[0].parts]


def plan_of(spec, point, device, environment, **kwargs):
    return make_plan(
        [point],
        kernels=[spec],
        device=device,
        environment=environment,
        directions=["fwd"],
        **kwargs,
    )


def test_the_heuristic_comes_first_and_once(point, device, environment):
    plan = plan_of(one_launch("k", [8, 4, 16, 8]), point, device, environment)
    assert todo(plan) == [("", [4, 8, 16])]
    assert plan.counts.todo == 3


def test_points_of_one_signature_share_a_case(point, device, environment):
    twin = GridPoint(name="twin", op=point.op, signature=point.signature)
    plan = make_plan([point, twin, point], kernels=[one_launch("k", [8])], device=device, environment=environment)
    assert [(c.case.names, c.case.direction) for c in plan.cases] == [
        (("tiny", "twin"), "fwd"),
        (("tiny", "twin"), "bwd"),
    ]


def test_infeasible_configs_become_trials_with_the_reason(point, device, environment):
    def infeasible(problem, device, config):
        return f"size {config.size} is too big" if config.size > 8 else None

    spec = one_launch("k", [8, 16], infeasible=infeasible)
    plan = plan_of(spec, point, device, environment)
    (pruned,) = plan.cases[0].kernels[0].pruned
    assert (pruned.status, pruned.reason, pruned.config) == (
        Status.UNSUPPORTED,
        "size 16 is too big",
        {"size": 16},
    )
    assert todo(plan) == [("", [4, 8])]
    assert plan.counts.pruned == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"unsupported": lambda p, d, v: "no causal masks"}, "no causal masks"),
        ({"requires": ("no_such_module_anywhere",)}, "no_such_module_anywhere"),
        ({"searches": {}}, "does not implement fwd"),
    ],
)
def test_unsupported_kernels_say_why(point, device, environment, changes, words):
    searches = one_launch("k", [8]).searches
    spec = kernel("k", **({"searches": searches} | changes))
    plan = plan_of(spec, point, device, environment)
    (trial,) = plan.cases[0].kernels[0].pruned
    assert trial.status is Status.UNSUPPORTED
    assert words in trial.reason
    assert plan.counts.unsupported_kernels == 1
    again = plan_of(
        spec,
        point,
        device,
        environment,
        measured=lambda *_: {("", trial.config_digest): Status.UNSUPPORTED},
    )
    assert again.cases[0].kernels[0].pruned == ()


def test_a_failed_config_is_not_tried_again(point, device, environment):
    known = {("", config_digest({"size": 8})): Status.CRASHED}
    spec = one_launch("k", [8, 16])
    plan = plan_of(spec, point, device, environment, measured=lambda *_: known)
    assert todo(plan) == [("", [4, 16])]
    assert plan.counts.done == 1


def test_measured_is_asked_with_the_kernels_own_environment(point, device, environment):
    asked = []

    def measured(kernel_id, direction, signature, environment):
        asked.append((kernel_id, direction, signature, environment.source_hash))
        return {}

    spec = one_launch("k", [8])
    plan_of(spec, point, device, environment, measured=measured)
    source_hash = spec.environment(environment).source_hash
    assert asked == [("flash_attention/k", "fwd", point.signature, source_hash)]


def trial_of(spec, point, device, environment, size, ns, *, part="", stage=Stage.SEARCH) -> Trial:
    return Trial(
        kernel=spec.id,
        direction="fwd",
        signature=point.signature,
        device=device,
        environment=spec.environment(environment),
        config={"size": size},
        status=Status.OK,
        part=part,
        stage=stage,
        measurement=Measurement(samples_ns=(ns,), protocol=Protocol(timer="host", warmup=1, flush_l2=False)),
    )


def resumed(spec, point, device, environment, trials):
    known = {(t.part, t.config_digest): t.status for t in trials}
    return plan_of(
        spec,
        point,
        device,
        environment,
        measured=lambda *_: known,
        history=lambda *_: trials,
    )


def test_without_history_right_configs_of_an_open_part_are_measured_again(point, device, environment):
    spec = two_launches("k", [8], [8])
    known = {("a", config_digest({"size": 4})): Status.OK}
    plan = plan_of(spec, point, device, environment, measured=lambda *_: known)
    assert todo(plan) == [("a", [4, 8]), ("b", [4, 8])]
    history = [trial_of(spec, point, device, environment, 4, 100, part="a")]
    plan = resumed(spec, point, device, environment, history)
    assert todo(plan) == [("a", [8]), ("b", [4, 8])]


def test_a_case_is_finished_only_after_its_finals(point, device, environment):
    spec = one_launch("k", [8])
    trials = [trial_of(spec, point, device, environment, s, 100) for s in (4, 8)]
    plan = resumed(spec, point, device, environment, trials)
    assert plan.counts.todo == 0
    assert not plan.cases[0].finished
    final = trial_of(spec, point, device, environment, 4, 100, stage=Stage.FINAL)
    assert resumed(spec, point, device, environment, [*trials, final]).cases[0].finished


@pytest.mark.parametrize(
    ("effort", "evaluations"),
    [
        (Effort(), 101),
        (Effort(share=0.15), 16),
        (Effort(share=0.01), 8),
        (Effort(share=0.15, max_trials=3), 3),
        (Effort(max_trials=500), 101),
    ],
)
def test_effort_says_how_many_of_a_space_are_evaluated(point, device, environment, effort, evaluations):
    spec = one_launch("k", list(range(5, 105)))
    plan = plan_of(spec, point, device, environment, effort=effort)
    assert plan.counts.todo == evaluations
    assert len(plan.cases[0].kernels[0].parts[0].candidates) == 101


def test_a_small_space_is_evaluated_whole(point, device, environment):
    spec = one_launch("k", list(range(5, 52)))
    plan = plan_of(spec, point, device, environment, effort=Effort(share=0.05))
    assert plan.counts.todo == 48


def test_trials_of_earlier_runs_count_towards_the_effort(point, device, environment):
    spec = one_launch("k", list(range(5, 105)))
    trials = [trial_of(spec, point, device, environment, size, 100) for size in range(40, 50)]
    known = {(t.part, t.config_digest): t.status for t in trials}
    known["", config_digest({"size": 60})] = Status.CRASHED
    plan = plan_of(
        spec,
        point,
        device,
        environment,
        measured=lambda *_: known,
        history=lambda *_: trials,
        effort=Effort(share=0.15),
    )
    (part,) = plan.cases[0].kernels[0].parts
    assert (part.done, part.todo) == (11, 5)
    assert list(part.tried.values()) == [100.0] * 10 + [math.inf]


def test_a_plan_without_cases_is_an_error(point, device, environment):
    with pytest.raises(NoDataError, match="nothing to sweep"):
        make_plan([point], kernels=[], device=device, environment=environment)
    with pytest.raises(NoDataError, match="no grid point has the direction decode; ops without a gradient"):
        make_plan(
            [point], kernels=[one_launch("k", [8])], device=device, environment=environment, directions=["decode"]
        )


def test_kernels_that_are_not_deterministic_are_left_out_by_direction(point, device, environment):
    spec = one_launch("k", [8])
    searches = dict(spec.searches)
    searches["bwd"] = searches["fwd"]
    spec = dataclasses.replace(spec, searches=searches)
    searches = searches | {"bwd": dataclasses.replace(searches["fwd"], nondeterministic="it adds in any order")}
    atomic = dataclasses.replace(spec, name="atomic", searches=searches)

    def planned(**more):
        made = make_plan([point], kernels=[spec, atomic], device=device, environment=environment, **more)
        return {c.case.direction: [k.kernel.name for k in c.kernels] for c in made.cases}

    assert planned() == {"fwd": ["k", "atomic"], "bwd": ["k", "atomic"]}
    assert planned(allow_nondeterministic=False) == {"fwd": ["k", "atomic"], "bwd": ["k"]}
