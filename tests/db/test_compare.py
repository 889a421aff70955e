"""Comparisons of two sweeps: planted differences are found, equal sweeps are undecided, and each row says why."""

import dataclasses

import numpy as np
import pytest

from attn_tune.db import Database, Verdict, compare_sides, find_shifts, merge_database, side_of_database
from attn_tune.db.compare.sides import Evidence
from attn_tune.db.compare.verdicts import Basis, Shift
from attn_tune.db.decide.statistics import holm, rank_sum
from attn_tune.schema import Environment, Rule
from tests.chosen import exhaustive
from tests.db.facts import DEVICE, OTHER_DEVICE
from tests.db.sweeps import noisy, problem, record_sweep, side

# Another config: no program is the same in both sides then.
OTHER = {"config": {"block_q": 64}}
TEN = {place: 100_000 + 10_000 * place for place in range(10)}


def verdicts(a, b, **options):
    """The verdicts that are none of ``undecided``, by the problem's number."""
    numbers = {problem(place).text: place for place in range(20)}
    rows = compare_sides(a, b, **options).rows
    return {numbers[r.one.signature.text]: str(r.verdict) for r in rows if r.verdict is not Verdict.UNDECIDED}


@pytest.mark.parametrize("noise", [exhaustive(0.01), 0.03])
def test_equal_sweeps_are_undecided_at_the_stated_rate(noise):
    # Other configs: no program is the same in both, so that the statistics alone keep the verdicts away.
    other = {"config": {"block_q": 64}, "noise": noise}
    families = [
        compare_sides(side(TEN, seed=2 * i, noise=noise), side(TEN, seed=2 * i + 1, **other)) for i in range(50)
    ]
    false = sum(any(row.verdict is not Verdict.UNDECIDED for row in found.rows) for found in families)
    assert false <= 2, "1 % of comparisons may have a false verdict; more than two of fifty come once in a hundred"
    rows = [row for found in families for row in found.rows]
    assert {row.basis for row in rows} == {Basis.UNPAIRED}
    assert np.mean([row.low <= 1 <= row.high for row in rows]) > 0.9


def test_a_planted_slowdown_of_5_percent_is_found_and_nothing_else():
    for seed in range(0, 20, 2):
        found = verdicts(side(TEN, seed=seed), side(TEN | {3: TEN[3] * 1.05}, seed=seed + 1))
        assert found == {3: "worse"}


def test_a_planted_gain_is_found_and_nothing_else():
    for seed in range(0, 20, 2):
        assert verdicts(side(TEN, seed=seed), side(TEN | {7: TEN[7] * 0.94}, seed=seed + 1)) == {7: "better"}


def test_a_verdict_turns_with_the_sides():
    a, b = side(TEN, seed=1), side(TEN | {0: 130_000, 1: 80_000}, seed=2)
    assert verdicts(a, b) == {0: "worse", 1: "better"}
    assert verdicts(b, a) == {0: "better", 1: "worse"}


def test_intervals_of_swapped_sides_are_reciprocal():
    a, b = side(TEN, seed=1), side(TEN, seed=2, **OTHER)
    one_way, other_way = ({row.one.signature: row for row in compare_sides(*sides).rows} for sides in ((a, b), (b, a)))
    assert len(one_way) == 10
    for signature, row in one_way.items():
        swapped = other_way[signature]
        assert row.low < row.high
        assert (swapped.low, swapped.high) == pytest.approx((1 / row.high, 1 / row.low), rel=1e-12)


@pytest.mark.parametrize(
    ("before", "after", "options", "reason", "needs"),
    [
        (
            *({0: 100_000}, {0: 100_500}, {}),
            *("within 1.0 %", "B above 101 us or below 99.0 us; less is no difference"),
        ),
        ({0: 4_000}, {0: 4_400}, {}, "within 0.5 us", "B above 4.50 us or below 3.50 us; less is no difference"),
        (
            *({0: 100_000}, {0: 104_000}, {"margin": 0.05}),
            *("within 5.0 %", "B above 105 us or below 95.0 us; less is no difference"),
        ),
    ],
)
def test_a_difference_that_is_not_worth_having_is_none(before, after, options, reason, needs):
    quiet = {"noise": 0.0001, "count": 30}
    (row,) = compare_sides(side(before, seed=1, **quiet), side(after, seed=2, **quiet, **OTHER), **options).rows
    assert (row.verdict, row.reason, row.needs) == (Verdict.UNDECIDED, reason, needs)


def test_few_samples_decide_nothing():
    (row,) = compare_sides(side({0: 100_000}, seed=1, count=3), side({0: 200_000}, seed=2, count=3)).rows
    assert (row.verdict, row.reason) == (Verdict.UNDECIDED, "too few samples: 3")
    assert row.needs == "8 samples a side: sweep both again"
    assert 1.5 < row.low < row.ratio < row.high


def test_what_is_significant_alone_may_be_chance_among_many():
    many, other = dict.fromkeys(range(20), 100_000), {"config": {"block_q": 64}}
    quiet = {"noise": 0.02, "count": 16}
    one = compare_sides(side({0: 100_000}, seed=14, **quiet), side({0: 103_000}, seed=15, **quiet, **other)).rows[0]
    assert one.verdict is Verdict.WORSE
    rows = compare_sides(side(many, seed=14, **quiet), side(many | {0: 103_000}, seed=15, **quiet, **other)).rows
    among = next(row for row in rows if row.one.signature == problem(0))
    assert among.ratio == one.ratio
    assert among.chance == one.chance > 0.01 / 20
    assert among.verdict is Verdict.UNDECIDED
    assert among.reason == "could be chance among 20 comparisons"


def test_a_slower_board_is_no_reason_to_call_every_winner_worse():
    slow = {place: ns * 1.03 for place, ns in TEN.items()}
    found = compare_sides(side(TEN, seed=1, noise=0.002), side(slow | {4: slow[4] * 1.1}, seed=2, noise=0.002))
    (shift,) = found.shifts
    assert (shift.programs, shift.device) == (10, DEVICE)
    assert shift.ratio == pytest.approx(1.03, abs=0.005)
    assert found.mean == pytest.approx(1.04, abs=0.005)
    assert {r.one.signature.text: str(r.verdict) for r in found.rows if r.verdict is not Verdict.UNDECIDED} == {
        problem(4).text: "worse"
    }
    few = dict(list(TEN.items())[:5])
    few_slow = {place: ns * 1.03 for place, ns in few.items()}
    found = compare_sides(side(few, seed=1, noise=0.002), side(few_slow, seed=2, noise=0.002))
    assert {row.verdict for row in found.rows} == {Verdict.UNDECIDED}


def test_few_programs_bound_a_verdict_by_those_of_other_problems():
    four = {place: TEN[place] for place in range(4)}
    busy = {place: ns * factor for (place, ns), factor in zip(four.items(), (4.0, 5.0, 1.0, 6.0), strict=True)}
    assert verdicts(side(four, seed=1), side(busy, seed=2)) == {}
    assert verdicts(side(four, seed=1), side(four | {2: four[2] * 1.05}, seed=2)) == {2: "worse"}
    alone = compare_sides(side({0: 100_000}, seed=1), side({0: 400_000}, seed=2))
    assert alone.rows[0].verdict is Verdict.UNDECIDED, "the same program four times slower is another machine"


def test_programs_that_lost_in_both_sweeps_tell_their_distance(tmp_path):
    paths = [tmp_path / "a.db", tmp_path / "b.db"]
    for seed, (path, factor) in enumerate(zip(paths, (1, 4), strict=True)):
        for number, config in enumerate(({"block_q": 64}, {"block_q": 128})):
            slow = 1.2 if number == seed else 1.0
            times = {place: TEN[place] * factor * slow for place in range(2)}
            record_sweep(path, times, seed=2 * seed + number, config=config)
    found = of_databases(*paths)
    assert {row.changed for row in found.rows} == {"config"}
    assert {row.verdict for row in found.rows} == {Verdict.UNDECIDED}
    assert found.shifts[0].programs == 4


def test_a_part_of_two_sides_is_judged_with_the_shift_of_the_whole():
    sides = side(TEN, seed=1, noise=0.002), side({place: ns * 1.03 for place, ns in TEN.items()}, seed=2, noise=0.002)
    parts = [dataclasses.replace(one, decisions=one.decisions[:1]) for one in sides]
    parts[1] = dataclasses.replace(parts[1], timed=dict)
    (row,) = compare_sides(*parts).rows
    assert row.verdict is Verdict.WORSE
    found = compare_sides(*parts, shifts=find_shifts(*sides))
    assert (found.rows[0].verdict, found.shifts[0].programs) == (Verdict.UNDECIDED, 10)


def with_evidence(one, **evidence):
    """The side with the same evidence for every decision."""
    return dataclasses.replace(one, evidence=lambda _: Evidence(**evidence))


def test_what_was_timed_in_turns_needs_no_bound_for_another_board():
    fast, slow = (noisy(np.random.default_rng(5), median, 0.002, 30) for median in (100_000, 104_000))
    a, b = side({0: 100_000}, seed=1), side({0: 104_000}, seed=2)
    far = [Shift(device=DEVICE, programs=50, ratio=1.2, noise=0.25)]
    for name, basis, verdict in (("same", Basis.PAIRED, Verdict.WORSE), ("other", Basis.UNPAIRED, Verdict.UNDECIDED)):
        sides = (
            with_evidence(a, samples=fast, rounds={("same", "r"): fast}),
            with_evidence(b, samples=slow, rounds={(name, "r"): slow}),
        )
        (row,) = compare_sides(*sides, shifts=far).rows
        assert (row.basis, row.verdict) == (basis, verdict)
    assert row.reason == "within 25.0 %"


def test_a_difference_within_that_of_a_config_from_itself_is_none():
    fast, slow = (noisy(np.random.default_rng(5), median, 0.002, 30) for median in (100_000, 104_000))
    a, b = side({0: 100_000}, seed=1), side({0: 104_000}, seed=2)
    b = dataclasses.replace(b, timed=dict)
    (row,) = compare_sides(with_evidence(a, samples=fast), with_evidence(b, samples=slow)).rows
    assert row.verdict is Verdict.WORSE
    (row,) = compare_sides(with_evidence(a, samples=fast), with_evidence(b, samples=slow, noise=0.06)).rows
    assert (row.verdict, row.reason) == (Verdict.UNDECIDED, "within 6.0 %")


def test_medians_alone_decide_what_is_beyond_their_bounds():
    a = side(TEN, seed=1, noise=0.0, kind="pack", regret=0.01)
    b = side(TEN | {0: 102_500, 1: 130_000, 2: 100_000}, seed=2, noise=0.0, kind="pack", regret=0.01)
    assert verdicts(a, b) == {1: "worse", 2: "better"}
    rows = {row.one.signature.text: row for row in compare_sides(a, b).rows}
    small = rows[problem(0).text]
    assert (small.basis, small.reason, small.chance) == (Basis.MEDIANS, "within 3.9 %", None)
    assert small.low < 1 < small.high
    assert verdicts(a, side(TEN | {1: 130_000}, seed=3, noise=0.0)) == {1: "worse"}, "a pack against a database"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rule": Rule.PREDICTED}, "predicted, not measured"),
        ({"median_ns": None}, "no time is known"),
        ({"samples": 3}, "too few samples: 3"),
        ({"regret_bound": None}, "medians without a bound of their noise"),
    ],
)
def test_a_row_without_enough_evidence_is_undecided(changes, reason):
    before, after = ({0: ns} for ns in (100_000, 200_000))
    (row,) = compare_sides(side(before, seed=1, kind="pack"), side(after, seed=2, kind="pack", **changes)).rows
    assert (row.verdict, row.reason) == (Verdict.UNDECIDED, reason)


def test_medians_of_sweeps_whose_distance_is_unknown_are_undecided_unless_a_margin_stands_for_it():
    a, b = side({0: 100_000}, seed=1, kind="pack"), side({0: 600_000}, seed=2, kind="pack", **OTHER)
    (row,) = compare_sides(a, b).rows
    assert row.verdict is Verdict.UNDECIDED
    assert row.reason.startswith("no program of another problem is the same")
    (row,) = compare_sides(a, b, margin=0.3).rows
    assert row.verdict is Verdict.WORSE


@pytest.mark.parametrize("kind", ["pack", "database"])
def test_one_program_does_not_tell_how_far_its_own_medians_are_apart(kind):
    a, b = side({0: 100_000}, seed=1, kind="pack"), side({0: 150_000}, seed=2, kind=kind)
    (row,) = compare_sides(a, b).rows
    assert (row.verdict, row.basis) == (Verdict.UNDECIDED, Basis.MEDIANS)
    assert row.reason.startswith("no program of another problem")
    # Other problems whose programs took as long in both tell it.
    others = {1: 80_000, 2: 70_000}
    a, b = side({0: 100_000} | others, seed=1, kind="pack"), side({0: 150_000} | others, seed=2, kind=kind)
    assert [row.verdict for row in compare_sides(a, b).rows] == [Verdict.WORSE, *[Verdict.UNDECIDED] * 2]


def test_noise_above_the_whole_time_can_be_overcome_by_no_time():
    a, b = side({0: 100_000}, seed=1), side({0: 20_000}, seed=2, **OTHER)
    loud = (with_evidence(one, samples=(ns,) * 20, noise=11.9) for one, ns in ((a, 100_000), (b, 20_000)))
    (row,) = compare_sides(*loud).rows
    assert (row.verdict, row.needs) == (Verdict.UNDECIDED, "less noise: sweep again in quiet")


def test_rows_are_sorted_from_the_worst_to_those_of_one_side():
    after = {0: 120_000, 1: 200_000, 2: 90_000, 3: TEN[3], 11: 5_000}
    rows = compare_sides(side({place: TEN[place] for place in range(5)}, seed=1), side(after, seed=2, **OTHER)).rows
    assert [str(row.verdict) for row in rows] == ["worse", "worse", "better", "undecided", "only_a", "only_b"]
    assert rows[0].ratio > rows[1].ratio > 1
    assert (rows[-2].one.signature, rows[-2].b) == (problem(4), None)


def test_the_better_of_two_kernels_stands_for_a_side():
    a = side({0: 100_000}, seed=1)
    slower = dataclasses.replace(a.decisions[0], kernel="flash_attention/xla", rank=1, median_ns=900_000)
    (row,) = compare_sides(dataclasses.replace(a, decisions=(slower, *a.decisions)), side({0: 100_000}, seed=2)).rows
    assert row.a is a.decisions[0]
    (row,) = compare_sides(a, dataclasses.replace(a, decisions=(dataclasses.replace(slower, rank=0),))).rows
    assert row.changed == "kernel"


def of_databases(*paths):
    databases = [Database.open(path, read_only=True) for path in paths]
    try:
        return compare_sides(*(side_of_database(one, one.path.name) for one in databases))
    finally:
        for one in databases:
            one.close()


def test_databases_are_compared_by_their_samples(tmp_path):
    few = {place: TEN[place] for place in range(4)}
    a = record_sweep(tmp_path / "a.db", few, seed=1)
    b = record_sweep(tmp_path / "b.db", few | {2: few[2] * 1.05}, seed=2)
    rows = of_databases(a, b).rows
    assert (str(rows[0].verdict), rows[0].one.signature) == ("worse", problem(2))
    assert {row.verdict for row in rows[1:]} == {Verdict.UNDECIDED}
    assert {row.basis for row in rows} == {Basis.UNPAIRED}, "runs of two databases may have the same number and round"
    assert rows[0].low < 1.05 < rows[0].high


def test_a_database_beside_itself_is_paired_and_equal(tmp_path):
    a = record_sweep(tmp_path / "a.db", {0: 100_000, 1: 200_000}, seed=1)
    for row in of_databases(a, a).rows:
        assert (row.basis, row.ratio, row.low, row.high, row.chance) == (Basis.PAIRED, 1.0, 1.0, 1.0, 1.0)
        assert row.verdict is Verdict.UNDECIDED


def test_a_final_that_both_databases_hold_is_compared_in_turns(tmp_path):
    a = record_sweep(tmp_path / "a.db", {0: 100_000}, seed=1)
    with Database.open(tmp_path / "b.db", create=True) as database:
        merge_database(database, a)
        database.rebuild_decisions()
    (row,) = of_databases(a, tmp_path / "b.db").rows
    assert (row.basis, row.ratio) == (Basis.PAIRED, 1.0)


def test_a_database_is_compared_by_the_runs_that_decide_it_not_by_older_ones_that_both_hold(tmp_path):
    old = record_sweep(tmp_path / "old.db", TEN, seed=1)
    slower = record_sweep(tmp_path / "new.db", TEN | {3: TEN[3] * 1.06}, seed=2)
    both = tmp_path / "both.db"
    with Database.open(both, create=True) as database:
        for path in (old, slower):
            merge_database(database, path)
        database.rebuild_decisions()
    (worst, *rest) = of_databases(old, both).rows
    assert (worst.verdict, worst.one.signature, worst.basis) == (Verdict.WORSE, problem(3), Basis.UNPAIRED)
    assert worst.b_ns == pytest.approx(TEN[3] * 1.06, rel=0.02)
    assert {row.verdict for row in rest} == {Verdict.UNDECIDED}


def test_a_disturbed_final_gives_no_verdict():
    a, b = side({0: 100_000}, seed=1), side({0: 140_000}, seed=2, **OTHER)
    (row,) = compare_sides(a, b).rows
    assert row.verdict is Verdict.WORSE
    samples = noisy(np.random.default_rng(5), 140_000, 0.01)
    b = with_evidence(b, samples=samples, disturbances=("another sweep ran on the host",))
    (row,) = compare_sides(a, b).rows
    assert (row.verdict, row.reason) == (Verdict.UNDECIDED, "a final was disturbed: another sweep ran on the host")


def test_another_device_or_another_source_is_told_apart(tmp_path):
    a = record_sweep(tmp_path / "a.db", {0: 100_000}, seed=1)
    b = record_sweep(tmp_path / "b.db", {0: 100_000}, seed=2, device=OTHER_DEVICE)
    assert [row.verdict for row in of_databases(a, b).rows] == [Verdict.ONLY_A, Verdict.ONLY_B]
    other = Environment(jax="0.12.0", jaxlib="0.12.0", triton="3.9.0", source_hash="b2:other")
    c = record_sweep(tmp_path / "c.db", {0: 100_000}, seed=2, environment=other)
    assert of_databases(a, c).shifts == (), "no program is the same in both"


def test_rank_sums_are_those_of_a_library():
    from scipy.stats import mannwhitneyu

    rng = np.random.default_rng(0)
    for count in (8, 24):
        a, b = noisy(rng, 100, 0.3, count), noisy(rng, 110, 0.3, count)
        expected = mannwhitneyu(a, b, method="asymptotic").pvalue
        assert rank_sum(a, b) == pytest.approx(expected)
    assert rank_sum([5] * 9, [5] * 9) == 1.0


def test_holm_keeps_findings_up_to_the_first_that_is_too_likely():
    assert holm([0.001, 0.5, 0.004, 0.003], 0.01) == [True, False, True, True]
    assert holm([0.001, 0.004, 0.0051], 0.01) == [True, True, True]
    assert holm([0.0001, 0.006, 0.0061], 0.01) == [True, False, False]
    assert holm([], 0.01) == []


def test_the_trials_of_a_database_are_read_once(tmp_path, monkeypatch):
    reads = []
    before = Database.recorded

    def recorded(database, **filters):
        reads.append(filters)
        return before(database, **filters)

    monkeypatch.setattr(Database, "recorded", recorded)
    path = record_sweep(tmp_path / "a.db", {place: TEN[place] for place in range(3)}, seed=1)
    with Database.open(path, read_only=True) as a, Database.open(path, read_only=True) as b:
        left, right = side_of_database(a, "a"), side_of_database(b, "b")
        reads.clear()
        found = compare_sides(left, right, margin=0.01, shifts=find_shifts(left, right))
    assert len(found.rows) == 3
    assert len(reads) == 2, "one for each side"
