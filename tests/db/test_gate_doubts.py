"""Rows that the gate doubts are refused with a reason and shipped only on purpose; the pack keeps their count."""

import dataclasses

import pytest

from attn_tune.db import Database
from attn_tune.db.release.gate import GatePolicy
from attn_tune.db.release.merge_packs import merge_packs
from attn_tune.schema import GateError
from attn_tune.schema.conditions import SHARED_HOST, Conditions
from attn_tune.tuner.protocol import MeasurePolicy
from tests.db.test_gate import FAST, SHORT, UNTUNED, export, lab, trial

STEADY = Conditions(sm_clock_mhz=(1980, 1980), throttle=("sw_power_cap",))
NOISY = {
    "another sweep": (Conditions(throttle=(SHARED_HOST,)), "another sweep ran on the host"),
    "clock": (Conditions(sm_clock_mhz=(1200, 1980)), "its clock moved between 1200 and 1980 MHz"),
    "heat": (
        Conditions(sm_clock_mhz=(1980, 1980), throttle=("hw_thermal_slowdown",)),
        r"the device was slowed down \(hw_thermal_slowdown\)",
    ),
}


def tied(path, spread):
    """Two configs that nothing tells apart: paired times differ by up to ``spread``, both ways."""

    def noisy(config, sign):
        one = trial(config, 10**6)
        samples = tuple(round(10**6 * (1 + sign * spread * (1 if i % 2 else -1))) for i in range(12))
        return dataclasses.replace(one, measurement=dataclasses.replace(one.measurement, samples_ns=samples))

    return lab(path, [noisy(FAST, 1), noisy(UNTUNED, -1)])


def both(**changes):
    return [trial(FAST, 10**6, **changes), trial(UNTUNED, 15 * 10**5, **changes)]


def refused(path, tmp_path, words, **options):
    with pytest.raises(GateError, match=words) as error:
        export(path, tmp_path / "refused", **options)
    (fact,) = error.value.objections
    assert fact["signature"] == SHORT.text
    assert fact["reason"] in str(error.value)
    assert not (tmp_path / "refused").exists()
    return fact


@pytest.mark.parametrize("features", [None, 0])
def test_a_row_without_a_feature_problem_is_shipped_on_purpose_only(tmp_path, features):
    path = lab(tmp_path / "lab.db", both(features=features))
    fact = refused(path, tmp_path, "its config ran no feature problem")
    assert (fact["doubt"], fact["kernel"]) == ("unproven", "flash_attention/triton")
    _, pack = export(path, tmp_path / "pack", policy=GatePolicy(allow_unproven=True))
    assert pack.gate["accepted"] == {"unproven": 1}
    assert [row.features for row in pack.rows] == [features]


def merged_gate(packs, tmp_path, policy):
    return merge_packs(packs, tmp_path / "merged", name="all", version="1", policy=policy, overwrite=True).pack.gate


def test_a_merged_pack_counts_the_rows_that_were_let_through_and_came_in(tmp_path):
    path = lab(tmp_path / "lab.db", both(features=0))
    _, doubtful = export(path, tmp_path / "pack", policy=GatePolicy(allow_unproven=True))
    _, sound = export(lab(tmp_path / "other.db", both()), tmp_path / "other")
    for packs in ([doubtful, sound], [doubtful, doubtful]):
        assert merged_gate(packs, tmp_path, "keep")["accepted"] == {"unproven": 1}
    assert "accepted" not in merged_gate([sound, doubtful], tmp_path, "keep")
    for packs in ([doubtful, sound], [sound, doubtful]):
        assert "accepted" not in merged_gate(packs, tmp_path, "fastest-verified")
    _, regretful = export(tied(tmp_path / "tied.db", 0.2), tmp_path / "tied", policy=GatePolicy(max_regret=1.0))
    assert merged_gate([regretful, sound], tmp_path, "keep")["accepted"] == {"regret": 1}
    assert "accepted" not in merged_gate([regretful, sound], tmp_path, "replace")


def test_a_regret_that_may_be_large_is_refused(tmp_path):
    path = tied(tmp_path / "lab.db", 0.2)
    with Database.open(path, read_only=True) as database:
        (decision,) = database.decide()
    bound = decision.regret_bound
    assert bound > 0.1
    fact = refused(path, tmp_path, "above the best, the limit is 10%")
    assert fact["doubt"] == "regret"
    refused(path, tmp_path, "the limit is 5%", policy=GatePolicy(max_regret=0.05))
    refused(path, tmp_path, "above the best", policy=GatePolicy(max_regret=bound - 0.001))
    _, pack = export(path, tmp_path / "pack", policy=GatePolicy(max_regret=bound + 0.001))
    assert pack.gate["accepted"] == {"regret": 1}


def test_a_limit_below_the_usual_one_counts(tmp_path):
    path = tied(tmp_path / "lab.db", 0.02)
    assert export(path, tmp_path / "pack")[1].gate["passed"] is True
    refused(path, tmp_path, "the limit is 0.1%", policy=GatePolicy(max_regret=0.001))


@pytest.mark.parametrize("case", NOISY)
def test_a_disturbed_final_is_refused(tmp_path, case):
    conditions, words = NOISY[case]
    path = lab(tmp_path / "lab.db", both(conditions=conditions))
    assert refused(path, tmp_path, words)["doubt"] == "noisy"
    _, pack = export(path, tmp_path / "pack", policy=GatePolicy(allow_noisy=True))
    assert pack.gate["accepted"] == {"noisy": 1}
    ungated = export(path, tmp_path / "other", ungated="a demo")[1].gate
    assert any("disturbed" in reason for reason in ungated["reasons"])


def test_a_quiet_final_after_a_disturbed_one_is_enough(tmp_path):
    noisy = both(conditions=NOISY["clock"][0])
    later = [dataclasses.replace(t, started_us=t.started_us + 10**6, conditions=STEADY) for t in both(round_id="later")]
    path = lab(tmp_path / "lab.db", [*noisy, *later])
    assert export(path, tmp_path / "pack")[1].gate["passed"] is True


def test_the_gate_and_the_finals_have_one_limit_of_steady_clocks():
    assert STEADY.disturbances == ()
    assert STEADY.steady(MeasurePolicy().clock_tolerance)
    for conditions, _ in NOISY.values():
        assert conditions.disturbances
        assert not conditions.steady(MeasurePolicy().clock_tolerance)
