"""Another source of a kernel: an older one does not decide for it, and the gate ships only what is installed."""

import dataclasses

import pytest

from attn_tune.db import Database, collect_garbage, decide
from attn_tune.kernels import source, staleness
from attn_tune.kernels.registry import get_kernel
from attn_tune.schema import GateError, NoDataError, OutputError, Status
from tests.db.facts import ENVIRONMENT, KERNEL, NEWER, SOURCE
from tests.db.test_decisions import HEURISTIC, OTHER, final
from tests.db.test_gate import FAST, RELEASED, UNTUNED, export, lab, trial

CHANGED = dataclasses.replace(ENVIRONMENT, source_hash="b2:changed")
BEFORE = [final(HEURISTIC, 200_000), final(OTHER, 150_000, seed=1)]
XLA = final({"chunk_q": 64}, 300_000, kernel="flash_attention/xla")
WRONG = (OutputError(output="out", error=0.2, allowed=0.1),)


def later(status=Status.INCORRECT, config=HEURISTIC, **changes):
    """A trial of the changed source after ``BEFORE``."""
    return final(config, 1_000, **{"status": status, "environment": CHANGED, "started": 20, "round_id": ""} | changes)


@pytest.mark.parametrize("status", [Status.INCORRECT, Status.RUNTIME_ERROR, Status.UNPROVEN])
def test_an_older_source_does_not_decide_for_one_of_which_nothing_is_right(status):
    decisions = decide([*BEFORE, later(status), XLA])
    assert [d.kernel for d in decisions] == ["flash_attention/xla"]
    assert decide([*BEFORE, later(Status.OK, errors=WRONG)]) == ()


def test_a_source_that_was_right_once_is_judged_by_what_came_last():
    once = final(HEURISTIC, 100_000, environment=CHANGED, started=1)
    assert decide([once, *BEFORE]) != ()
    assert decide([once, *BEFORE, later()]) == ()


def test_a_source_that_is_right_again_decides():
    again = [final(HEURISTIC, 200_000, started=30, run=2), final(OTHER, 150_000, seed=1, started=30, run=2)]
    (decision,) = decide([*BEFORE, later(), *again])
    assert (decision.config, decision.environment.source_hash) == (OTHER, SOURCE)


IMPORT = "compile: ImportError: no such library"
NO_JUDGE = {
    "refused": [later(Status.UNSUPPORTED)],
    "compiled alone": [later(Status.COMPILED, is_heuristic=False)],
    "without its library": [later(Status.COMPILE_ERROR, reason=IMPORT)],
    "older": [later(started=5)],
    "other compilers": [later(config={"block_q": 16}, environment=NEWER)],
    "a search that goes on": [later(Status.OUT_OF_RESOURCES), later(Status.OK, {"block": 64}, part="dq")],
}


@pytest.mark.parametrize("case", NO_JUDGE)
def test_what_says_nothing_of_a_source_leaves_the_decision(case):
    (decision,) = decide([*BEFORE, *NO_JUDGE[case]])
    assert (decision.config, decision.environment) == (OTHER, ENVIRONMENT)


def test_right_parts_do_not_excuse_a_wrong_whole():
    right = later(Status.OK, {"block": 64}, part="dq")
    assert decide([*BEFORE, right]) != ()
    assert decide([*BEFORE, right, later()]) == ()


def test_a_digest_by_its_old_name_is_no_other_source(monkeypatch):
    monkeypatch.setattr(source, "read_aliases", lambda: {"b2:changed": SOURCE})
    (decision,) = decide([*BEFORE, later()])
    assert decision.config == OTHER
    assert staleness.is_stale(KERNEL, CHANGED) is False


def test_garbage_collection_keeps_the_trials_by_which_nothing_is_decided(tmp_path):
    old = [trial(UNTUNED, 10**6), trial(FAST, 10**6)]
    changed = dataclasses.replace(RELEASED, source_hash="b2:changed")
    failed = {"status": Status.INCORRECT, "errors": (), "round_id": ""}
    newer = [
        trial(UNTUNED, 0, environment=changed, started_us=old[0].started_us + 10, **failed),
        trial({**UNTUNED, "num_warps": 8}, 0, started_us=old[0].started_us + 20, **failed),
    ]
    with Database.open(lab(tmp_path / "lab.db", [*old, *newer])) as database:
        assert list(database.decide()) == []
        collect_garbage(database, superseded=True)
        assert len(list(database.trials())) == 4


def changed_lab(tmp_path, **changes):
    environment = dataclasses.replace(RELEASED, source_hash="b2:changed")
    trials = [trial(c, t, environment=environment, **changes) for c, t in ((FAST, 10**6), (UNTUNED, 15 * 10**5))]
    return lab(tmp_path / "lab.db", trials)


def test_a_row_of_another_source_than_is_installed_is_refused_with_the_way_out(tmp_path):
    path = changed_lab(tmp_path)
    with pytest.raises(GateError, match="measured with another source of its kernel than is installed here") as error:
        export(path, tmp_path / "pack")
    assert "sweep these again, with --no-resume" in str(error.value)
    assert export(path, tmp_path / "pack", ungated="to restamp it")[1].gate["objections"] == 1


def test_rows_of_other_hosts_pass_where_their_kernel_is_not_installed(tmp_path, monkeypatch):
    path = changed_lab(tmp_path, kernel="flash_attention/of_another_host")
    assert export(path, tmp_path / "pack")[1].gate["passed"] is True
    # Nor is a kernel whose library is missing: its version is a part of the source.
    without = dataclasses.replace(get_kernel(KERNEL), libraries=("no-such-distribution",))
    monkeypatch.setattr(staleness, "find_kernel", lambda name: without)
    assert staleness.is_stale(KERNEL, CHANGED) is None


def test_a_row_whose_config_the_installed_kernel_does_not_take_is_refused(tmp_path):
    renamed = {**FAST, "rows": 128}
    path = lab(tmp_path / "lab.db", [trial(renamed, 10**6), trial(UNTUNED, 15 * 10**5)])
    with pytest.raises(GateError, match="does not take its config: ForwardConfig has no knob 'rows'"):
        export(path, tmp_path / "pack")


def test_an_export_without_a_decision_names_the_kernel_whose_new_source_is_wrong(tmp_path):
    changed = dataclasses.replace(RELEASED, source_hash="b2:changed")
    right = trial(UNTUNED, 10**6)
    failed = {"status": Status.INCORRECT, "errors": (), "round_id": ""}
    wrong = trial(UNTUNED, 0, environment=changed, started_us=right.started_us + 10, **failed)
    with pytest.raises(NoDataError, match=f"{KERNEL} was right with an older source alone"):
        export(lab(tmp_path / "lab.db", [right, wrong]), tmp_path / "pack")
