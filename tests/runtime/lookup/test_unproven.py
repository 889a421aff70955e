"""A row whose config ran no feature problem answers only where the job allows it."""

import pytest

from attn_tune.runtime.active.layers import current_view, reload, use_pack
from attn_tune.runtime.lookup.answer import Rung
from attn_tune.runtime.lookup.coverage import Reach, cover
from attn_tune.runtime.lookup.dispatch import choose, explain, lookup
from attn_tune.runtime.rank_statement import differences, statement_of
from attn_tune.schema import UsageError
from tests.ops.known import known_kernels
from tests.runtime.lookup.toy_op import KERNELS, pack
from tests.runtime.packbuilder import H200, OP, row, sig


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.delenv("ATTN_TUNE_UNPROVEN", raising=False)
    specs = {k.id: k for k in KERNELS}
    known_kernels(monkeypatch, specs)
    yield specs
    monkeypatch.delenv("ATTN_TUNE_UNPROVEN", raising=False)
    reload()


def ask(features, *, kernel=None):
    more = {} if features is None else {"features": features}
    with use_pack(pack(row(sig(1024), 64, **more))):
        return lookup(OP, sig(1024), device=H200, kernel=kernel)


def test_a_row_without_a_feature_problem_is_turned_down_with_the_reason():
    for kernel in (None, "alpha"):
        answer = ask(0, kernel=kernel)
        assert answer.rung is Rung.UNTUNED
        (rejection,) = answer.rejected
        assert "unproven" in rejection.reason
        assert "ATTN_TUNE_UNPROVEN=1" in rejection.reason
    with use_pack(pack(row(sig(1024), 64, features=0))):
        assert "unproven" in str(explain(OP, sig(1024), "fwd", device=H200))


@pytest.mark.parametrize("features", [None, 1, 4])
def test_a_proven_row_and_one_of_an_older_pack_answer(features):
    answer = ask(features)
    assert (answer.rung, answer.features) == (Rung.EXACT, features)


def test_a_job_may_take_unproven_rows(monkeypatch):
    before = statement_of(current_view())
    monkeypatch.setenv("ATTN_TUNE_UNPROVEN", "1")
    reload()
    assert (ask(0).rung, ask(0).features) == (Rung.EXACT, 0)
    with use_pack(pack(row(sig(1024), 64, features=0))):
        assert choose(OP, "fwd", sig(1024), device=H200).answer.rung is Rung.EXACT
    # Ranks of a job that differ in it would choose differently.
    (line,) = differences({0: before, 1: before, 2: statement_of(current_view())})
    assert line == "process 2: use of unproven rows is allowed; processes 0, 1: none"


@pytest.mark.parametrize("doubt", [{"features": 0}, {"repeatable": False}])
def test_ranks_whose_packs_differ_in_a_doubt_disagree(doubt):
    said = {}
    for process, more in enumerate(({}, {"features": 4, "repeatable": True}, doubt)):
        with use_pack(pack(row(sig(1024), 64, **more))):
            said[process] = statement_of(current_view())
    (line,) = differences(said)
    assert line.startswith("process 2: pack 1 is overlay")
    assert ", doubts b2:" in line.partition("; processes 0, 1: ")[0]


@pytest.mark.parametrize("value", ["yes", " 1"])
def test_any_other_value_is_an_error(monkeypatch, value):
    monkeypatch.setenv("ATTN_TUNE_UNPROVEN", value)
    with pytest.raises(UsageError, match=rf"ATTN_TUNE_UNPROVEN must be 1 .* got '{value}'"):
        reload()


def test_coverage_counts_an_unproven_row_as_one_that_can_answer():
    (found,) = cover(pack(row(sig(1024), 64, features=0)))
    assert found.reach is Reach.REACHED


def test_coverage_has_another_word_for_a_kernel_whose_modules_are_not_here(monkeypatch):
    monkeypatch.setattr("attn_tune.runtime.lookup.coverage.missing", lambda spec: "needs a module")
    (found,) = cover(pack(row(sig(1024), 64)))
    assert (str(found.reach), found.reason) == ("uninstalled", "needs a module")
