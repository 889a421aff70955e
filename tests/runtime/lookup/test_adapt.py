"""A row of a near problem answers with its winner, adapted; the decision's losers never do."""

import dataclasses

import pytest

from attn_tune.packs.override_files import parse_overrides
from attn_tune.runtime.active import settings
from attn_tune.runtime.active.layers import use_pack
from attn_tune.runtime.lookup.answer import Rung
from attn_tune.runtime.lookup.dispatch import choose, explain, lookup
from attn_tune.schema import UsageError
from tests.runtime.lookup import toy_op
from tests.runtime.lookup.toy_op import Config, pack, problem
from tests.runtime.packbuilder import H200, OP, row, sig

HEURISTIC = {"block": 8}


def decision(t, winner, loser=2):
    """``alpha`` won with block ``winner``, ``beta`` lost."""
    return [row(sig(t), winner), row(sig(t), loser, kernel="beta", rank=1)]


@pytest.fixture
def adapting(monkeypatch):
    """Puts a function in the place of ``adapt`` of all toy kernels."""

    def put(adapt):
        for spec in toy_op.KERNELS:
            for search in spec.searches.values():
                monkeypatch.setitem(search.__dict__, "adapt", adapt)

    return put


def by_length(tuned, problem, device, config):
    """Blocks grow with the length."""
    return dataclasses.replace(config, block=config.block * problem["t"] // tuned["t"])


@pytest.mark.parametrize("t", [1000, 1100])  # the same bucket, and a neighbour
def test_the_loser_of_a_near_problem_does_not_answer_for_a_refused_winner(t):
    with use_pack(pack(*decision(1024, 2000))):
        answer = lookup(OP, sig(t), device=H200)
        assert (answer.rung, answer.kernel, answer.config) == (Rung.UNTUNED, "alpha", HEURISTIC)
        assert [r.reason for r in answer.rejected] == ["block 2000 does not fit"]


@pytest.mark.parametrize("t", [1000, 1100])
def test_the_winner_of_a_near_problem_is_one_that_is_installed(t):
    def decided(block):
        best = row(sig(1024), 96, kernel="absent")
        return [best, row(sig(1024), block, rank=1), row(sig(1024), 2, kernel="beta", rank=2)]

    with use_pack(pack(*decided(64))):
        answer = lookup(OP, sig(t), device=H200)
    assert (answer.kernel, answer.config, answer.row_signature) == ("alpha", {"block": 64}, sig(1024))
    assert ["no_such_module_anywhere" in r.reason for r in answer.rejected] == [True]
    with use_pack(pack(*decided(2000))):
        assert lookup(OP, sig(t), device=H200).rung is Rung.UNTUNED


@pytest.mark.parametrize(("value", "expected"), [(None, ("beta", 2)), ("0", ("alpha", 64)), ("1", ("beta", 2))])
def test_the_winner_of_a_near_problem_is_one_that_the_job_allows(value, expected, monkeypatch):
    if value is not None:
        monkeypatch.setenv("ATTN_TUNE_DETERMINISTIC", value)
    settings.swap_settings()
    with use_pack(pack(row(sig(1024), 64, repeatable=False), row(sig(1024), 2, kernel="beta", rank=1))):
        answer = lookup(OP, sig(1100), device=H200)
    assert (answer.kernel, answer.config["block"], answer.rung) == (*expected, Rung.NEIGHBOUR)


def test_a_config_of_another_problem_that_may_not_answer_is_an_untuned_one_all_the_same(adapting):
    adapting(by_length)
    # Of another length the untuned config is the one whose bits were seen to differ.
    with use_pack(pack(row(sig(1024), HEURISTIC["block"], repeatable=False))):
        answer = lookup(OP, sig(2048), device=H200)
        explained = explain(OP, sig(2048), device=H200)
    assert (answer.kernel, answer.config, answer.rung) == ("alpha", HEURISTIC, Rung.UNTUNED)
    assert explained.heuristic.kernel == explained.answer.kernel == "alpha"


def test_the_next_nearest_decision_is_asked_before_the_heuristic():
    with use_pack(pack(*decision(1100, 2000), *decision(1024, 64), *decision(1030, 128))):
        answer = lookup(OP, sig(1200), device=H200)
    assert (answer.kernel, answer.config, answer.row_signature) == (
        "alpha",
        {"block": 128},
        sig(1030),
    )


def test_the_rows_of_the_same_problem_are_a_ranked_list():
    with use_pack(pack(*decision(1024, 2000))):
        answer = lookup(OP, sig(1024), device=H200)
    assert (answer.rung, answer.kernel, answer.config) == (Rung.EXACT, "beta", {"block": 2})


def test_a_kernel_that_is_named_answers_with_its_row_of_any_rank():
    with use_pack(pack(*decision(1024, 64))):
        answer = lookup(OP, sig(1100), device=H200, kernel="beta")
    assert (answer.rung, answer.kernel, answer.config) == (Rung.NEIGHBOUR, "beta", {"block": 2})


def test_an_adapted_config_answers_and_says_what_it_was(adapting):
    adapting(by_length)
    with use_pack(pack(*decision(1024, 64))):
        choice = choose(OP, "fwd", problem(sig(2048)), device=H200)
        found = explain(OP, sig(2048), device=H200)
    assert choice.config == Config(block=128)
    assert choice.answer.config == {"block": 128}
    assert choice.answer.adapted_from == {"block": 64}
    words = "block=128 (neighbour from lab 2026.1, adapted from block=64)"
    assert str(choice.answer) == f"toy/alpha fwd: {words}"
    assert "neighbour: alpha block=128, adapted from block=64  CHOSEN" in str(found)


def test_a_config_that_needs_no_change_is_not_called_adapted(adapting):
    adapting(lambda tuned, problem, device, config: dataclasses.replace(config))
    with use_pack(pack(*decision(1024, 64))):
        answer = lookup(OP, sig(2048), device=H200)
    assert (answer.config, answer.adapted_from) == ({"block": 64}, None)
    assert "adapted" not in str(answer)


def test_the_row_of_the_same_problem_is_never_adapted(adapting):
    adapting(lambda tuned, problem, device, config: Config(block=1))
    elsewhere = dataclasses.replace(H200, power_watts=500)
    with use_pack(pack(*decision(1024, 64))):
        for device in (H200, elsewhere):
            answer = lookup(OP, sig(1024), device=device)
            assert (answer.rung, answer.config) == (Rung.EXACT, {"block": 64})
            assert answer.adapted_from is None


def no_config(tuned, problem, device, config):
    return None


def no_valid_config(tuned, problem, device, config):
    raise UsageError("block must be even")


def too_large(tuned, problem, device, config):
    return Config(block=3000)


@pytest.mark.parametrize(
    ("adapt", "reason"),
    [
        (no_config, "toy/alpha has no such config for this problem"),
        (no_valid_config, "block must be even"),
        (too_large, "block 3000 does not fit"),
    ],
)
def test_a_row_that_cannot_be_adapted_is_rejected_with_the_reason(adapting, adapt, reason):
    adapting(adapt)
    with use_pack(pack(*decision(1024, 64))):
        answer = lookup(OP, sig(1100), device=H200)
    assert (answer.rung, answer.config) == (Rung.UNTUNED, HEURISTIC)
    assert [r.reason for r in answer.rejected] == [reason]


def test_never_entries_are_asked_of_the_adapted_config(adapting):
    adapting(by_length)
    bad = [{"op": OP, "kernel": "alpha", "config": {"block": 128}, "reason": "wrong"}]
    forbidden = parse_overrides({"format": 1, "never": bad}, "test", "test")
    settings._current = settings.Settings(overrides=(forbidden,))
    with use_pack(pack(*decision(1024, 64))):
        assert lookup(OP, sig(2048), device=H200).rung is Rung.UNTUNED
        assert lookup(OP, sig(1536), device=H200).config == {"block": 96}
