"""A kernel that is not deterministic answers questions that name it, and others only where the job allows it."""

import dataclasses

import pytest

from attn_tune.runtime.active.layers import current_view, reload, use_overrides, use_pack
from attn_tune.runtime.lookup.answer import Rung
from attn_tune.runtime.lookup.dispatch import choose, explain, lookup
from attn_tune.runtime.overrides.entries import use_config
from attn_tune.runtime.overrides.freeze import freeze
from attn_tune.runtime.rank_statement import differences, statement_of
from attn_tune.schema import LockfileError, UnsupportedError, UsageError
from tests.ops.known import known_kernels
from tests.runtime.lookup.toy_op import KERNELS, OtherConfig, kernel, pack, problem
from tests.runtime.packbuilder import H200, OP, row, sig

WHY = "programs add in any order"


def atomic(name, **more):
    """A kernel that its platform likes best, and that says why it is not deterministic."""
    spec = kernel(name, OtherConfig, priority={"cuda": 99}, **more)
    searches = {d: dataclasses.replace(s, nondeterministic=WHY) for d, s in spec.searches.items()}
    return dataclasses.replace(spec, searches=searches)


LIBRARY = dataclasses.replace(atomic("vendor"), backend="cudnn")


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.delenv("ATTN_TUNE_DETERMINISTIC", raising=False)
    specs = {k.id: k for k in (*KERNELS, atomic("atomic"))}
    known_kernels(monkeypatch, specs)
    return specs


def ask(value, monkeypatch, **more):
    """Returns the answer of a lookup in a pack that ranks ``atomic`` first and ``alpha`` second."""
    if value is not None:
        monkeypatch.setenv("ATTN_TUNE_DETERMINISTIC", value)
        reload()
    with use_pack(pack(row(sig(1024), 2, kernel="atomic"), row(sig(1024), 64, rank=1))):
        return lookup(OP, sig(1024), device=H200, **more)


@pytest.mark.parametrize(("value", "expected"), [(None, "alpha"), ("", "alpha"), ("1", "alpha"), ("0", "atomic")])
def test_the_deterministic_kernel_answers_an_open_question(value, expected, monkeypatch):
    answer = ask(value, monkeypatch)
    assert answer.kernel == expected
    assert answer.rung is Rung.EXACT
    if expected == "alpha":
        (rejection,) = answer.rejected
        assert WHY in rejection.reason


@pytest.mark.parametrize(("value", "expected"), [(None, "alpha"), ("1", "alpha"), ("0", "atomic")])
def test_a_nondeterministic_kernel_is_an_untuned_default_where_the_job_allows_it_alone(value, expected, monkeypatch):
    if value:
        monkeypatch.setenv("ATTN_TUNE_DETERMINISTIC", value)
        reload()
    answer = lookup(OP, sig(1024), device=H200)
    assert (answer.kernel, answer.rung) == (expected, Rung.UNTUNED)


def test_a_nondeterministic_kernel_runs_by_name_unless_determinism_is_required(monkeypatch):
    assert ask(None, monkeypatch, kernel="atomic").config == {"block": 2}
    assert choose(OP, "fwd", sig(4096), device=H200, kernel="atomic").config == OtherConfig()
    explicit = {"kernel": "atomic", "config": OtherConfig(block=3), "device": H200}
    assert choose(OP, "fwd", problem(sig(1024)), **explicit).config.block == 3
    with use_config(OP, "atomic", {"block": 5}):
        assert lookup(OP, sig(1024), device=H200).config == {"block": 5}
    monkeypatch.setenv("ATTN_TUNE_DETERMINISTIC", "1")
    reload()
    for given in ({"kernel": "atomic", "device": H200}, explicit):
        with pytest.raises(UnsupportedError, match=rf"{WHY}.*ATTN_TUNE_DETERMINISTIC=1 forbids"):
            choose(OP, "fwd", problem(sig(1024)), **given)
    with use_config(OP, "atomic", {"block": 5}):
        answer = lookup(OP, sig(1024), device=H200)
    assert answer.kernel == "alpha"
    assert WHY in answer.rejected[0].reason


def test_a_frozen_nondeterministic_answer_is_replayed_unless_determinism_is_required(monkeypatch, tmp_path):
    with use_config(OP, "atomic", {"block": 5}):
        lookup(OP, sig(1024), device=H200)
    frozen = freeze(tmp_path / "job.json")
    with use_overrides(frozen.path):
        assert lookup(OP, sig(1024), device=H200).kernel == "atomic"
        monkeypatch.setenv("ATTN_TUNE_DETERMINISTIC", "1")
        reload()
        with pytest.raises(LockfileError, match=WHY):
            lookup(OP, sig(1024), device=H200)


def test_a_library_answers_unless_determinism_is_required(monkeypatch, registered):
    registered[LIBRARY.id] = LIBRARY
    assert lookup(OP, sig(1024), device=H200).kernel == "vendor"
    monkeypatch.setenv("ATTN_TUNE_DETERMINISTIC", "1")
    reload()
    assert lookup(OP, sig(1024), device=H200).kernel == "alpha"


def wavering(value, monkeypatch, **more):
    """The answer where a row of ``alpha``, which declares nothing, was seen to give other bits from run to run."""
    if value is not None:
        monkeypatch.setenv("ATTN_TUNE_DETERMINISTIC", value)
        reload()
    with use_pack(pack(row(sig(1024), 32, repeatable=False))):
        return lookup(OP, sig(1024), device=H200, **more), explain(OP, sig(1024), device=H200)


@pytest.mark.parametrize(
    ("value", "kernel", "tuned"),
    [
        (None, None, False),
        (None, "alpha", True),
        ("1", None, False),
        ("1", "alpha", False),
        ("0", None, True),
    ],
)
def test_a_row_whose_bits_differ_needs_the_same_permission(value, kernel, tuned, monkeypatch):
    answer, explained = wavering(value, monkeypatch, kernel=kernel)
    assert (answer.rung is Rung.EXACT) == tuned
    assert answer.repeatable is (False if tuned else None)
    if tuned:
        assert "bits differ from run to run" in str(answer)
    else:
        assert "its bits differ from run to run" in answer.rejected[0].reason
    assert "bits differ from run to run" in str(explained)
    forbidden = "its bits differ from run to run, and ATTN_TUNE_DETERMINISTIC=1 forbids that"
    assert (forbidden in str(explained)) == (value == "1")


def test_an_answer_says_what_its_row_says_of_the_proof():
    with use_pack(pack(row(sig(1024), 32, repeatable=True, features=3))):
        answer, explained = lookup(OP, sig(1024), device=H200), explain(OP, sig(1024), device=H200)
    assert (answer.repeatable, answer.features) == (True, 3)
    assert "feature problems passed: 3" in str(explained)


def test_the_heuristic_does_not_bring_back_the_config_of_such_a_row(monkeypatch, registered):
    untuned = lookup(OP, sig(1024), device=H200)
    row_of_it = row(sig(1024), untuned.config["block"], kernel=untuned.kernel, repeatable=False)
    with use_pack(pack(row_of_it)):
        answer = lookup(OP, sig(1024), device=H200)
    assert answer.rung is Rung.UNTUNED
    assert answer.kernel != untuned.kernel
    assert any("untuned config of" in r.subject and "bits" in r.reason for r in answer.rejected)


def test_rows_whose_bits_differ_make_no_call_fail_unless_it_asks_for_equal_bits(monkeypatch):
    untuned, rows = lookup(OP, sig(1024), device=H200), []
    answer = untuned
    while answer.repeatable is not False:
        block, kernel = answer.config["block"], answer.kernel
        rows.append(row(sig(1024), block, kernel=kernel, rank=len(rows), repeatable=False))
        with use_pack(pack(*rows)):
            answer = lookup(OP, sig(1024), device=H200)
    assert len(rows) > 1
    assert (answer.kernel, answer.config, answer.rung) == (
        untuned.kernel, untuned.config, Rung.UNTUNED,
    )  # fmt: skip
    monkeypatch.setenv("ATTN_TUNE_DETERMINISTIC", "1")
    reload()
    with use_pack(pack(*rows)), pytest.raises(UnsupportedError, match="bits differ"):
        lookup(OP, sig(1024), device=H200)


def test_a_frozen_answer_knows_that_bits_differ(monkeypatch, tmp_path):
    wavering("0", monkeypatch)
    frozen = freeze(tmp_path / "job.json")
    assert {entry.frozen.repeatable for entry in frozen.entries} == {False}
    with use_overrides(frozen.path):
        assert lookup(OP, sig(1024), device=H200).repeatable is False
        monkeypatch.setenv("ATTN_TUNE_DETERMINISTIC", "1")
        reload()
        with pytest.raises(LockfileError, match="its bits differ from run to run"):
            lookup(OP, sig(1024), device=H200)


def test_an_error_names_determinism_where_no_other_kernel_can_answer(monkeypatch, registered):
    only = atomic("atomic")
    registered.clear()
    registered[only.id] = only
    with pytest.raises(UnsupportedError, match=f"toy/atomic: .*{WHY}.*ask for it by name"):
        choose(OP, "fwd", sig(1024), device=H200)
    assert WHY in str(explain(OP, sig(1024), device=H200))


@pytest.mark.parametrize("value", ["yes", " 1"])
def test_a_value_that_is_no_answer_is_an_error(monkeypatch, value):
    monkeypatch.setenv("ATTN_TUNE_DETERMINISTIC", value)
    with pytest.raises(UsageError, match=rf"ATTN_TUNE_DETERMINISTIC must be 1 .* got '{value}'"):
        lookup(OP, sig(1024), device=H200)


def test_determinism_is_part_of_the_rank_statement(monkeypatch):
    before, said = current_view().settings.digest, statement_of(current_view())
    monkeypatch.setenv("ATTN_TUNE_DETERMINISTIC", "1")
    assert reload()
    assert current_view().settings.digest != before
    (line,) = differences({0: said, 1: said, 2: statement_of(current_view())})
    assert line == "process 2: determinism is required; processes 0, 1: none"
