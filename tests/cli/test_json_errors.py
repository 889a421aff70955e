"""Errors under --json: one object on stdout, and nothing else there, for every error."""

import json

import pytest
from typer.testing import CliRunner

from attn_tune.cli import app, commands
from tests.cli.fakes import POINT, fill

CASES = {
    "no database": (["status", "--db", "none.db"], 3, "NoDataError"),
    "unknown point": (["best", "nosuch"], 2, "UsageError"),
    "no grid": (["sweep"], 2, "UsageError"),
    "not a number": (["sweep", "--max-trials", "many"], 2, "UsageError"),
    "no pack": (["pack", "verify"], 2, "UsageError"),
    "a pack that is not there": (["pack", "inspect", "none.atpack"], 4, "StorageError"),
    "as a format": (["report", "--db", "none.db", "-f", "json"], 3, "NoDataError"),
    "as a long format": (["report", "--db", "none.db", "--format=json"], 3, "NoDataError"),
    "as a format in one word": (["report", "--db", "none.db", "-fjson"], 3, "NoDataError"),
    "beside a format": (["report", "--db", "none.db", "--json", "-f", "csv"], 3, "NoDataError"),
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
    assert f"error: {data['error']}\n" in result.stderr


def with_json():
    """The words of every command, inner ones too, that takes --json."""
    for words, command in commands():
        if any("--json" in parameter.opts for parameter in command.params):
            yield list(words)


@pytest.mark.parametrize("words", list(with_json()), ids=" ".join)
def test_every_command_reports_a_wrong_option_as_an_object(words):
    result, data = answer([*words, "--no-such-option", "--json"])
    assert (result.exit_code, data["exit_code"], data["type"]) == (2, 2, "UsageError")
    assert "--no-such-option" in data["error"]


MISTAKES = {
    "nosuch": "no such command 'nosuch'; see 'attn-tune --help'",
    "--nosuch": "no such option: --nosuch; see 'attn-tune --help'",
    "best": "missing argument 'POINT'; see 'attn-tune best --help'",
    "override nosuch": "no such command 'nosuch'; see 'attn-tune override --help'",
    "report --sect x": "no such option: --sect (Possible options: --section); see 'attn-tune report --help'",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_an_error_about_the_command_line_is_one_line_like_any_other(words):
    result = CliRunner().invoke(app, words.split(), prog_name="attn-tune")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"error: {MISTAKES[words]}\n"


def test_a_group_without_words_shows_its_help():
    result = CliRunner().invoke(app, ["pack"], prog_name="attn-tune")
    assert (result.exit_code, result.stderr) == (2, "")
    assert "Commands" in result.stdout


@pytest.mark.parametrize("fmt", ["json", "csv", "markdown"])
def test_stdout_has_the_answer_alone(tmp_path, monkeypatch, fmt):
    def loud(*_):
        print("from a package")

    monkeypatch.setattr("attn_tune.commands.shared.cases.Cases.stored_kernels", loud)
    fill(tmp_path / "lab.db", directions=("fwd",))
    words = ["report", "--format", fmt, "--db", str(tmp_path / "lab.db")]
    result = CliRunner().invoke(app, words, prog_name="attn-tune")
    assert (result.exit_code, result.stderr) == (0, "from a package\n")
    assert "causal" in result.stdout
    assert "package" not in result.stdout


def test_a_defect_is_an_object_too(monkeypatch):
    def fail(*_):
        raise RuntimeError("out of luck")

    monkeypatch.setattr("attn_tune.commands.shared.selection.signature", fail)
    result, data = answer(["explain", POINT, "--json"])
    assert isinstance(result.exception, RuntimeError)
    assert data == {"error": "out of luck", "type": "RuntimeError", "exit_code": 1}


def test_without_json_stdout_stays_empty(tmp_path):
    result = CliRunner().invoke(app, ["status", "--db", str(tmp_path / "none.db")])
    assert (result.exit_code, result.stdout) == (3, "")


@pytest.mark.parametrize(
    "words",
    [
        "plan --from-fn json",
        "plan --from-fn --json",
        "devices --device json",
        "explain json",
        "explain -- --json",
        "report --db none.db --op json",
        "report --db none.db -f json -f table",
    ],
)
def test_a_value_that_reads_like_the_option_asks_for_no_json(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, words.split(), prog_name="attn-tune")
    assert (result.exit_code != 0, result.stdout) == (True, "")
    assert result.stderr.startswith("error: ")
