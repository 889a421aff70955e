"""Races: the samples behind decisions, and the interval of their gain."""

import math
import statistics

import pytest

from attn_tune.db import Database
from tests.db.facts import begin, make_trial

DEFAULT, FAST, SLOW = {"rows": 1}, {"rows": 2}, {"rows": 3}


def spread(center, count, step):
    return tuple(center + 10 * ((step * i) % 11 - 5) for i in range(count))


@pytest.fixture
def database(tmp_path):
    with Database.open(tmp_path / "lab.db", create=True) as made:
        yield made


def decide(database, trials):
    run = begin(database)
    database.record_many(run, trials)
    database.end_run(run, "finished")
    database.rebuild_decisions()
    return database.races(database.decisions(rank=0))


def searched(*configs):
    return [make_trial(c, (100_000,), is_heuristic=c == DEFAULT, started_us=n) for n, c in enumerate(configs)]


def final(centers, round_id="a" * 32, count=24):
    return [
        make_trial(c, spread(center, count, 7 + n), is_heuristic=c == DEFAULT, started_us=50, round_id=round_id)
        for n, (c, center) in enumerate(centers)
    ]


def test_the_rival_of_a_win_is_the_winner_and_samples_of_one_turn_stand_together(database):
    centers = [(DEFAULT, 90_000), (FAST, 60_000), (SLOW, 80_000)]
    (race,) = decide(database, [*searched(DEFAULT, FAST, SLOW), *final(centers), *final(centers, "b" * 32, 9)])
    assert race.rule == "winner"
    assert (race.untuned_config, race.rival_config) == ('{"rows":1}', '{"rows":2}')
    assert race.rounds == (24, 9)
    assert race.untuned_ns == spread(90_000, 24, 7) + spread(90_000, 9, 7)
    assert race.rival_ns == spread(60_000, 24, 8) + spread(60_000, 9, 8)
    ratios = [math.log(a / b) for a, b in zip(race.untuned_ns, race.rival_ns, strict=True)]
    assert math.log(race.speedup) == pytest.approx(statistics.median(ratios))
    assert min(ratios) <= math.log(race.low) <= math.log(race.speedup) <= math.log(race.high) <= max(ratios)
    assert race.is_paired


def test_the_rival_of_a_tie_is_the_one_that_came_nearest(database):
    (race,) = decide(
        database, [*searched(DEFAULT, FAST, SLOW), *final([(DEFAULT, 60_000), (FAST, 60_010), (SLOW, 80_000)])]
    )
    assert race.rule == "tie"
    assert race.rival_config == '{"rows":2}'
    assert race.low <= 1 <= race.high


def test_without_finals_the_interval_is_what_few_samples_allow(database):
    trials = [
        make_trial(DEFAULT, (90_000, 100_000, 95_000), is_heuristic=True),
        make_trial(FAST, (40_000, 50_000, 45_000), started_us=1_700_000_000_000_001),
    ]
    (race,) = decide(database, trials)
    assert not race.is_paired
    assert (race.low, race.high) == (pytest.approx(90 / 50), pytest.approx(100 / 40))
    assert race.speedup == pytest.approx(95 / 45)


def test_a_decision_without_a_default_or_a_rival_has_no_race(database):
    assert decide(database, searched(DEFAULT)) == []
    assert len(database.decisions()) == 1


def test_the_frame_of_finals_has_the_state_of_the_device(database):
    from attn_tune.schema.conditions import Conditions

    conditions = Conditions(sm_clock_mhz=(1900, 1980), power_w=(400, 500), throttle=("hw_slowdown",), repeats=2)
    run = begin(database)
    trials = [
        make_trial(DEFAULT, (9, 9), is_heuristic=True),
        make_trial(DEFAULT, (9, 9), round_id="a" * 32, conditions=conditions),
    ]
    database.record_many(run, trials)
    (row,) = database.frame("finals").itertuples()
    assert (row.clock_low, row.clock_high, row.power_low, row.power_high, row.repeats) == (1900, 1980, 400, 500, 2)
    assert row.throttle == '["hw_slowdown"]'
    assert database.frame("finals")["temperature_low"].isna().all()
