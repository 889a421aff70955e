"""Rows of another source of their kernel than is installed here, as each command shows them."""

import json

import pytest
from typer.testing import CliRunner

from attn_tune.cli import app
from attn_tune.kernels.spec import KernelSpec
from attn_tune.schema import Status
from tests.cli.fakes import SIGNATURE, FakeExecutor, fill


def run(*words):
    result = CliRunner().invoke(app, [str(w) for w in words], prog_name="attn-tune")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    fill(tmp_path / "lab.db", directions=("fwd",))
    return tmp_path / "lab.db"


@pytest.fixture
def change(monkeypatch):
    """A function that changes the source of every kernel that is installed here."""
    return lambda: monkeypatch.setattr(KernelSpec, "source_hash", "b2:changed")


@pytest.mark.parametrize(
    ("words", "key"), [(("report", "--section", "summary"), "summary"), (("best", SIGNATURE), "decisions")]
)
def test_stale_rows_are_marked(lab, change, words, key):
    assert "stale" not in run(*words, "--db", lab).stdout
    assert json.loads(run(*words, "--db", lab, "--json").stdout)[key][0]["stale"] is False
    change()
    told = run(*words, "--db", lab).stdout
    assert "winner  stale" in told
    assert "the kernel's source here is not the one that was measured. Sweep again" in told
    assert json.loads(run(*words, "--db", lab, "--json").stdout)[key][0]["stale"] is True


def test_the_page_of_a_report_marks_stale_rows(lab, change):
    assert " stale<" not in _figures(lab)
    change()
    assert " stale<" in _figures(lab)


def _figures(lab):
    return run("report", "--db", lab, "--html", "-").stdout


def test_explain_calls_no_stale_row_an_agreement(lab, change, monkeypatch):
    monkeypatch.setattr("attn_tune.commands.explain._is_answer", lambda decision, one: True)
    asked = ["explain", SIGNATURE, "--device", "cpu", "--db", lab, "--direction", "fwd"]
    assert f"{lab} agrees: " in run(*asked).stdout
    change()
    told = run(*asked).stdout
    assert "agrees" not in told
    assert f"{lab} has the same config, but it is stale there too: " in told
    monkeypatch.undo()
    change()
    assert ", stale). Calls read packs" in run(*asked).stdout
    assert json.loads(run(*asked, "--json").stdout)["fwd"]["unshipped"]["stale"] is True


def test_a_sweep_whose_new_source_is_wrong_decides_nothing_and_leaves_nothing_to_ship(lab, change, tmp_path):
    assert run("export", tmp_path / "old", "--db", lab).exit_code == 0
    change()
    outcome = fill(lab, FakeExecutor(status=Status.INCORRECT), directions=("fwd",))
    assert (outcome.decisions, len(outcome.without)) == ((), 1)
    refused = run("export", tmp_path / "new", "--db", lab)
    assert (refused.exit_code, "was right with an older source alone" in refused.stderr) == (3, True)
