"""The guess of a sweep's time counts the feature problems, of which small cases mostly consist."""

from attn_tune.tuner.plan import duration
from attn_tune.tuner.plan.planner import make_plan
from tests.tuner.replay import one_launch


def test_the_guess_counts_references_and_programs_of_feature_problems(point, device, environment, monkeypatch):
    plan = make_plan(
        [point], kernels=[one_launch("k", [8])], device=device, environment=environment, directions=["fwd"]
    )
    monkeypatch.setattr(duration, "load", lambda path: lambda problem: ())
    without = duration.guessed_s(plan)
    monkeypatch.setattr(duration, "load", lambda path: lambda problem: (problem,) * 10)
    least, most = (now - before for now, before in zip(duration.guessed_s(plan), without, strict=True))
    # Ten references, and a program of the untuned config, or of it and of the fastest, for each.
    assert round(least, 6) == round(10 * (0.3 + 0.12), 6)
    assert round(most, 6) == round(10 * (3.0 + 2 * 2.0), 6)
