"""The choice of a config from trials."""

import dataclasses
import random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from attn_tune.db import Database, RecordedTrial, decide
from attn_tune.schema import OutputError, Rule, Status
from attn_tune.schema.decision import Proof
from attn_tune.schema.trial import twin_round
from tests.db.facts import ENVIRONMENT, NEWER, begin, make_signature, make_trial

HEURISTIC = {"block_q": 64}
OTHER = {"block_q": 128}
THIRD = {"block_q": 256}
WRONG = (OutputError(output="out", error=0.2, allowed=0.1),)


def around(median, count=24, seed=0, spread=0.01):
    """Noisy samples whose drift depends on the seed only."""
    noise = np.random.default_rng(seed).normal(0, spread, count)
    return tuple(int(median * np.exp(x)) for x in noise)


def final_trial(config, median, *, started=10, round_id="r1", seed=0, **changes):
    changes.setdefault("is_heuristic", config == HEURISTIC)
    samples = changes.pop("samples", around(median, seed=seed))
    return make_trial(config, samples, round_id=round_id, started_us=started, **changes)


def final(config, median, *, run=1, **changes):
    return RecordedTrial(run, final_trial(config, median, **changes))


def winner(findings):
    return decide(findings)[0]


def test_a_faster_config_beats_the_heuristic():
    decision = winner([final(HEURISTIC, 200_000), final(OTHER, 150_000, seed=1)])
    assert decision.config == OTHER
    assert decision.rule is Rule.WINNER
    assert decision.gain == pytest.approx(4 / 3, rel=0.02)
    assert decision.heuristic_ns == pytest.approx(200_000, rel=0.02)
    assert decision.regret_bound == 0
    assert decision.samples == 24
    assert decision.trials == 2
    assert decision.ties == ()
    assert decision.worst_error == pytest.approx(0.2)


def test_the_heuristic_stays_when_nothing_beats_it():
    decision = winner([final(HEURISTIC, 200_000), final(OTHER, 199_500, seed=1)])
    assert decision.config == HEURISTIC
    assert decision.rule is Rule.TIE
    assert len(decision.ties) == 1
    assert 0 < decision.regret_bound < 0.02


def test_a_gain_below_what_a_config_shows_against_itself_is_none():
    fast, slow = around(194_000, seed=1), around(200_000, seed=1)
    pair = [final(HEURISTIC, 0, samples=slow), final(OTHER, 0, samples=fast)]
    assert winner(pair).config == OTHER
    quiet = final(OTHER, 0, samples=around(194_500, seed=1), round_id=twin_round("r1"))
    assert winner([*pair, quiet]).config == OTHER
    # 3 % faster than the heuristic, but so it is than itself.
    loud = final(OTHER, 0, samples=around(200_500, seed=1), round_id=twin_round("r1"))
    decision = winner([*pair, loud])
    assert decision.config == HEURISTIC
    assert decision.rule is Rule.TIE


def test_the_second_measurement_of_a_round_is_no_sample_of_the_first():
    pair = [final(HEURISTIC, 200_000), final(OTHER, 150_000, seed=1)]
    twin = final(OTHER, 151_000, seed=2, round_id=twin_round("r1"))
    assert winner([*pair, twin]).samples == winner(pair).samples == 24
    assert winner([*pair, twin]).median_ns == winner(pair).median_ns


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1_000, 10**9), min_size=1, max_size=30))
def test_identical_samples_tie(samples):
    decision = winner([final(c, 0, samples=samples) for c in (HEURISTIC, OTHER, THIRD)])
    assert decision.config == HEURISTIC
    assert decision.rule is Rule.TIE
    assert len(decision.ties) == 2
    assert decision.gain == 1


def test_pairs_see_through_drift_that_hides_the_gain():
    drift = np.exp(np.cumsum(np.random.default_rng(0).normal(0, 0.1, 40)))
    slow = [int(x * 200_000) for x in drift]
    fast = [int(x * 0.95) for x in slow]
    paired = winner([final(HEURISTIC, 0, samples=slow), final(OTHER, 0, samples=fast)])
    assert paired.config == OTHER
    apart = [
        final(HEURISTIC, 0, samples=slow, round_id=""),
        final(OTHER, 0, samples=fast, round_id=""),
    ]
    assert winner(apart).config == HEURISTIC


def test_finals_overrule_lucky_searches():
    lucky = final(THIRD, 100_000, round_id="")
    decision = winner([lucky, final(HEURISTIC, 200_000), final(OTHER, 150_000, seed=1)])
    assert decision.config == OTHER


def test_times_of_different_runs_are_not_compared():
    """The second day the clock was twice as fast; on either day the other config is slower."""
    found = [
        final(HEURISTIC, 200_000, run=1, started=1, round_id=""),
        final(HEURISTIC, 100_000, run=2, started=20, round_id=""),
        final(OTHER, 120_000, run=2, started=20, round_id="", seed=1),
        final(HEURISTIC, 400_000, run=3, started=30, round_id=""),
    ]
    decision = winner(found)
    assert (decision.config, decision.rule) == (HEURISTIC, Rule.SEARCH)
    fast = final(OTHER, 80_000, run=2, started=20, round_id="", seed=1)
    decision = winner([*found[:2], fast, found[3]])
    assert decision.config == OTHER
    assert decision.gain == pytest.approx(1.25, rel=0.02)
    assert (decision.median_ns, decision.heuristic_ns) == (
        pytest.approx(80_000, rel=0.02),
        pytest.approx(100_000, rel=0.02),
    )


def test_runs_that_share_nothing_are_compared_as_a_last_resort():
    found = [
        final(HEURISTIC, 200_000, run=1, round_id=""),
        final(OTHER, 100_000, run=2, round_id="", seed=1),
    ]
    assert (winner(found).config, winner(found).rule) == (OTHER, Rule.SEARCH)


@pytest.mark.parametrize("others", [[], [final(HEURISTIC, 200_000, round_id="")]])
def test_a_search_without_a_final_decides_nothing_and_bounds_no_regret(others):
    decision = winner([final(OTHER, 150_000, round_id="", seed=1), *others])
    assert (decision.config, decision.rule, decision.regret_bound) == (OTHER, Rule.SEARCH, None)


def test_one_right_config_is_the_only_one():
    decision = winner([final(OTHER, 150_000), final(HEURISTIC, 1, status=Status.CRASHED)])
    assert (decision.config, decision.rule) == (OTHER, Rule.ONLY)
    assert decision.heuristic_ns is None
    assert decision.gain is None


def test_without_the_heuristic_the_fastest_is_chosen():
    found = [final(OTHER, 150_000), final(THIRD, 200_000, seed=1)]
    assert (winner(found).config, winner(found).rule) == (OTHER, Rule.WINNER)
    near = [final(OTHER, 150_000), final(THIRD, 150_100, seed=0)]
    assert winner(near).rule is Rule.TIE


@pytest.mark.parametrize("status", [Status.INCORRECT, Status.CRASHED])
@pytest.mark.parametrize("environment", [ENVIRONMENT, NEWER])
def test_a_config_that_was_ever_wrong_is_never_chosen(status, environment):
    bad = final(OTHER, 1, status=status, environment=environment, started=20, round_id="")
    decision = winner([final(HEURISTIC, 200_000), final(OTHER, 100_000), bad])
    assert decision.config == HEURISTIC


def test_a_config_that_was_wrong_in_an_older_environment_may_be_right_now():
    old = final(OTHER, 1, status=Status.INCORRECT, started=5)
    new = [final(c, m, environment=NEWER) for c, m in ((HEURISTIC, 200_000), (OTHER, 100_000))]
    assert winner([old, *new]).config == OTHER
    assert winner([old, *new]).environment == NEWER


def test_errors_above_the_limit_count_even_when_marked_ok():
    wrong = final(OTHER, 100_000, errors=WRONG)
    assert winner([final(HEURISTIC, 200_000), wrong]).config == HEURISTIC


def test_a_config_that_was_never_checked_is_never_chosen():
    unchecked = final(OTHER, 100_000, errors=())
    assert winner([final(HEURISTIC, 200_000), unchecked]).config == HEURISTIC
    assert decide([unchecked]) == ()
    checked = final(OTHER, 100_000, round_id="")
    assert winner([final(HEURISTIC, 200_000), unchecked, checked]).config == OTHER


def test_a_wrong_part_taints_the_whole():
    whole = {"dkv": {"block": 64}, "dq": {"block": 32}}
    part = final({"block": 64}, 1, status=Status.INCORRECT, part="dkv", round_id="")
    decision = winner([final(HEURISTIC, 200_000), final(whole, 100_000), part])
    assert decision.config == HEURISTIC


def test_parts_are_never_decisions():
    assert decide([final(OTHER, 100_000, part="dq")]) == ()
    assert decide([final(OTHER, 1, status=Status.TIMED_OUT)]) == ()


def test_the_newest_environment_speaks():
    old = [final(HEURISTIC, 200_000), final(OTHER, 100_000)]
    new = [
        final(HEURISTIC, 100_000, environment=NEWER, started=20, run=2, round_id="r2"),
        final(OTHER, 200_000, environment=NEWER, started=20, run=2, round_id="r2", seed=1),
    ]
    decision = winner([*new, *old])
    assert (decision.config, decision.environment) == (HEURISTIC, NEWER)


def test_kernels_are_ranked_by_time():
    found = [
        final(HEURISTIC, 200_000),
        final({"x": 1}, 100_000, kernel="flash_attention/cudnn", is_heuristic=True),
        final({}, 300_000, kernel="flash_attention/xla", is_heuristic=True),
    ]
    decisions = decide(found)
    assert [(d.rank, d.kernel.split("/")[1]) for d in decisions] == [
        (0, "cudnn"),
        (1, "triton"),
        (2, "xla"),
    ]


def test_the_order_of_trials_does_not_matter():
    found = [
        final(c, 200_000 + i, seed=i, round_id=r, started=i)
        for i, c in enumerate((HEURISTIC, OTHER, THIRD) * 3)
        for r in ("", "r1", "r2")
    ]
    first = decide(found)
    for seed in range(5):
        random.Random(seed).shuffle(found)
        assert decide(found) == first


def test_a_trial_without_a_feature_problem_is_no_evidence():
    found = [
        final(HEURISTIC, 200_000),
        final(OTHER, 100_000, seed=1, status=Status.UNPROVEN),
        final(THIRD, 50_000, environment=NEWER, status=Status.UNPROVEN),
    ]
    decision = winner(found)
    assert decision.config == HEURISTIC
    assert decision.environment == ENVIRONMENT
    assert decide(found[1:]) == ()


@pytest.mark.parametrize(
    ("seen", "expected"),
    [((None, None), None), ((None, True), True), ((True, False), False), ((False, None), False)],
)
def test_one_trial_with_other_bits_is_enough(seen, expected):
    found = [final(OTHER, 200_000, round_id=f"r{i}", repeatable=repeatable) for i, repeatable in enumerate(seen)]
    assert winner(found).repeatable is expected


def refused(config, started, **changes):
    refusal = make_trial(config, status=Status.UNSUPPORTED, repeatable=False, started_us=started, **changes)
    return RecordedTrial(2, refusal)


def test_a_config_that_was_refused_for_its_bits_needs_a_newer_trial():
    found = [final(HEURISTIC, 200_000), final(OTHER, 150_000, seed=1, started=10)]
    assert winner(found).config == OTHER
    assert winner([*found, refused(OTHER, 11)]).config == HEURISTIC
    allowed = final(OTHER, 150_000, seed=1, started=12, repeatable=False)
    decision = winner([*found, refused(OTHER, 11), allowed])
    assert (decision.config, decision.repeatable) == (OTHER, False)
    # In an older environment it says nothing.
    newer = [RecordedTrial(f.run, dataclasses.replace(f.trial, environment=NEWER)) for f in found]
    assert winner([*newer, refused(OTHER, 9)]).config == OTHER


def test_a_decision_says_the_most_feature_problems_that_its_config_passed():
    found = [final(OTHER, 200_000, round_id=f"r{i}", features=features) for i, features in enumerate((None, 0, 7))]
    assert [winner(found[:count]).features for count in (1, 2, 3)] == [None, 0, 7]


def test_a_config_that_never_came_to_a_final_has_passed_no_feature_problem():
    searched = winner([final(OTHER, 200_000, round_id="", features=None), final(HEURISTIC, 210_000, round_id="")])
    assert (searched.rule, searched.features, searched.proof) == (Rule.SEARCH, 0, Proof.UNPROVEN)


def test_decisions_survive_the_database(tmp_path):
    with Database.open(tmp_path / "lab.db", create=True) as database:
        run = begin(database)
        long = make_signature(q_len=256)
        wanted = []
        for signature in (make_signature(), long):
            found = [
                final_trial(HEURISTIC, 200_000, signature=signature),
                final_trial(OTHER, 150_000, seed=1, signature=signature, repeatable=False, features=4),
                final_trial({}, 300_000, kernel="flash_attention/xla", signature=signature),
            ]
            for trial in found:
                database.record(run, trial)
            wanted += decide(RecordedTrial(run, trial) for trial in found)
        assert database.rebuild_decisions() == 2
        assert database.decisions() == sorted(wanted, key=lambda d: (d.signature.text, d.rank))
        assert [d.rank for d in database.decisions(signature=long)] == [0, 1]
        facts = database.frame("decisions", signature=long)[["repeatable", "features"]]
        assert facts.values.tolist()[0] == [False, 4]
        assert [d.config for d in database.decisions(rank=0)] == [OTHER, OTHER]
        assert [d.kernel for d in database.decisions(kernel="xla", signature=long)] == ["flash_attention/xla"]
        # A config found wrong later takes the decision with it, in its signature only.
        database.record(run, make_trial(OTHER, status=Status.INCORRECT, signature=long))
        assert database.rebuild_decisions(signatures=[long]) == 1
        assert [d.config for d in database.decisions(rank=0)] == [OTHER, HEURISTIC]
