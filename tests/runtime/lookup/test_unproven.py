"""A row whose config ran no feature problem answers only where the job allows it."""

from dataclasses import replace

import pytest

from attn_tune.packs.reader import pack_from_files
from attn_tune.runtime.active.layers import current_view, reload, use_pack
from attn_tune.runtime.determinism import Determinism
from attn_tune.runtime.lookup.answer import Rung
from attn_tune.runtime.lookup.coverage import Reach, cover
from attn_tune.runtime.lookup.dispatch import choose, explain, lookup
from attn_tune.runtime.rank_statement import differences, statement_of
from attn_tune.runtime.unproven import takes_unproven
from attn_tune.schema import UsageError
from tests.ops.known import known_kernels
from tests.runtime.lookup.toy_op import HERE, KERNELS, pack
from tests.runtime.packbuilder import H200, OP, pack_files, row, sig, with_list


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


def test_zero_is_as_without_it():
    assert [takes_unproven({"ATTN_TUNE_UNPROVEN": value}) for value in ("", "0", "1")] == [False, False, True]


def test_coverage_reaches_an_unproven_row_only_for_jobs_that_take_such():
    unproven = pack(row(sig(1024), 64, features=0))
    (found,) = cover(unproven)
    assert (found.reach, "ATTN_TUNE_UNPROVEN=1" in found.reason) == (Reach.DEAD, True)
    assert [one.reach for one in cover(unproven, unproven=True)] == [Reach.REACHED]


def test_coverage_names_the_entry_of_the_packs_own_list_that_forbids_a_row():
    rows = [{**row(sig(t), 64), "env": HERE} for t in (1024, 4096)]
    listed = with_list(pack_files(rows), [{"kernel": "alpha", "signature": {"t": 1024}, "reason": "hangs"}])
    found = {one.row.signature: (one.reach, one.reason) for one in cover(pack_from_files(listed))}
    assert found == {
        sig(1024): (Reach.DEAD, "an override forbids it: hangs (pack lab 2026.1)"),
        sig(4096): (Reach.REACHED, ""),
    }


@pytest.mark.parametrize("declared", [False, True], ids=["seen", "declared"])
def test_coverage_of_a_row_whose_bits_differ_asks_as_a_job_that_it_is_meant_for(registered, declared):
    """A kernel that declares it needs leave, so its rows are for jobs that give it; of others a row is turned down."""
    alpha = registered[f"{OP}/alpha"]
    if declared:
        searches = {d: replace(s, nondeterministic="atomics") for d, s in alpha.searches.items()}
        registered[alpha.id] = replace(alpha, searches=searches)
    differing = pack(row(sig(1024), 64, repeatable=False))
    reached = {
        setting: (found.reach is Reach.REACHED, "ATTN_TUNE_DETERMINISTIC" in found.reason)
        for setting in Determinism
        for found in cover(differing, setting)
    }
    assert reached == {
        Determinism.USUAL: (declared, not declared),
        Determinism.WAIVED: (True, False),
        Determinism.REQUIRED: (False, True),
    }


@pytest.mark.parametrize("forbidden", [False, True])
def test_coverage_calls_a_row_dead_that_no_machine_takes_also_where_its_kernel_is_not_here(forbidden):
    entries = [{"kernel": "absent", "reason": "hangs"}] if forbidden else []
    files = pack_files([row(sig(1024), 64, kernel="absent", **({} if forbidden else {"features": 0}))])
    (found,) = cover(pack_from_files(with_list(files, entries) if entries else files))
    assert found.reach is Reach.DEAD
    assert ("hangs" if forbidden else "unproven") in found.reason


def test_coverage_has_another_word_for_a_kernel_whose_modules_are_not_here(monkeypatch):
    monkeypatch.setattr("attn_tune.runtime.lookup.coverage.missing", lambda spec: "needs a module")
    (found,) = cover(pack(row(sig(1024), 64)))
    assert (str(found.reach), found.reason) == ("uninstalled", "needs a module")
