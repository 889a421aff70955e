"""Errors under --json: one object on stdout, and nothing else there, whatever goes wrong."""

import json

import pytest
from typer.testing import CliRunner

from attn_tune.cli.app import app
from attn_tune.cli.commands import COMMANDS, load_command
from tests.cli.fakes import POINT

CASES = {
    "no database": (["status", "--db", "none.db"], 3, "NoDataError"),
    "unknown point": (["best", "nosuch"], 2, "UsageError"),
    "no grid": (["sweep"], 2, "UsageError"),
    "not a number": (["sweep", "--max-trials", "many"], 2, "UsageError"),
    "no pack": (["verify"], 2, "UsageError"),
    "a pack that is not there": (["inspect", "none.atpack"], 4, "StorageError"),
    "as a format": (["report", "--db", "none.db", "-f", "json"], 3, "NoDataError"),
    "as a long format": (["report", "--db", "none.db", "--format=json"], 3, "NoDataError"),
}


def answer(words):
    result = CliRunner().invoke(app, [str(word) for word in words], prog_name="attn-tune")
    return result, json.loads(result.stdout)


@pytest.mark.parametrize("name", CASES)
def test_an_error_is_one_object(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    words, status, kind = CASES[name]
    asked = [] if "json" in str(words) else ["--json"]
    result, data = answer([*words, *asked])
    assert (result.exit_code, data["exit_code"], data["type"]) == (status, status, kind)
    assert set(data) == {"error", "type", "exit_code"}
    assert data["error"] in result.stderr.replace("\n", " ") or kind == "UsageError"


def with_json():
    """The words of every command, inner ones too, that takes --json."""
    for name in COMMANDS:
        command = load_command(name)
        inner = getattr(command, "commands", {})
        for words, one in [([name], command), *(([name, sub], c) for sub, c in inner.items())]:
            if any("--json" in parameter.opts for parameter in one.params):
                yield words


@pytest.mark.parametrize("words", list(with_json()), ids=" ".join)
def test_every_command_reports_a_wrong_option_as_an_object(words):
    result, data = answer([*words, "--no-such-option", "--json"])
    assert (result.exit_code, data["exit_code"], data["type"]) == (2, 2, "UsageError")
    assert "--no-such-option" in data["error"]


def test_a_defect_is_an_object_too(monkeypatch):
    def fail(text, grids=None):
        raise RuntimeError("out of luck")

    monkeypatch.setattr("attn_tune.cli.choose.signature", fail)
    result, data = answer(["explain", POINT, "--json"])
    assert isinstance(result.exception, RuntimeError)
    assert data == {"error": "out of luck", "type": "RuntimeError", "exit_code": 1}


def test_without_json_stdout_stays_empty(tmp_path):
    result = CliRunner().invoke(app, ["status", "--db", str(tmp_path / "none.db")])
    assert (result.exit_code, result.stdout) == (3, "")
