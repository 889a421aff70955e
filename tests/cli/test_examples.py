"""The examples that the help of commands shows: every one is understood, and what needs no device runs."""

import re
import shlex
import shutil

import pytest
from typer.testing import CliRunner

from attn_tune.cli import app, commands
from attn_tune.runtime.active import settings
from tests.cli.fakes import fill


def examples():
    """(command words, example) of every help page, inner commands too."""
    for _, command in commands():
        help_text = " ".join((command.help or "").split())
        for text in re.findall(r"Example: (attn-tune .*?)(?= Example: |$)", help_text):
            yield text.strip()


COMMANDS = {words: command for words, command in commands() if not getattr(command, "commands", {})}
EXAMPLES = list(dict.fromkeys(examples()))
# These compile, or need a program, a GPU or the spool of misses; a watch waits for a sweep to come.
NEEDS = ("sweep", "validate", "pack sign", "pack restamp")
# Exit codes of examples that ask for something missing: a point that was not swept, an id of no override,
# rows of a kernel of another tool.
STATUS = {"best": 3, "override remove": 3, "export": 3, "pack convert": 3, "pack verify": 5}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Files by the names that the examples use."""
    folder = tmp_path_factory.mktemp("examples")
    for name in ("lab.db", "sweep.db", "host-a.db"):
        fill(folder / name, directions=("fwd",))
    shutil.copy(folder / "host-a.db", folder / "host-b.db")
    run("export", folder / "h200.atpack", "--db", folder / "lab.db")
    for name in ("h200-llama", "h200-1", "h200-2", "a", "b"):
        shutil.copy(folder / "h200.atpack", folder / f"{name}.atpack")
    run("override", "freeze", folder / "job.json", "--grid", "cpu-smoke", "--device", "cpu")
    (folder / "keys").mkdir()
    return folder


def run(*words):
    settings._current = None
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="attn-tune")


def command_of(text):
    """The words that name a command in an example, and the words that follow."""
    words = shlex.split(text.partition(" > ")[0])[1:]
    count = max(n for n in (1, 2, 3) if tuple(words[:n]) in COMMANDS)
    return tuple(words[:count]), words[count:]


def test_every_command_has_an_example():
    assert {command_of(text)[0] for text in EXAMPLES} == set(COMMANDS)


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_is_understood(text):
    name, words = command_of(text)
    COMMANDS[name].make_context("attn-tune", words)


@pytest.mark.parametrize("text", [t for t in EXAMPLES if not t[10:].startswith(NEEDS) and "--watch" not in t])
def test_an_example_runs(text, made, tmp_path, monkeypatch):
    folder = tmp_path / "work"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    for name in ("PACKS", "OVERRIDES", "TRUSTED_KEYS"):
        monkeypatch.delenv(f"ATTN_TUNE_{name}", raising=False)
    monkeypatch.setenv("ATTN_TUNE_DB", str(folder / "lab.db"))
    monkeypatch.setattr(settings, "_current", None)
    words = shlex.split(text.partition(" > ")[0])[1:]
    if words[0] == "export" or "freeze" in words:
        (folder / words[1 + words.index("freeze") if "freeze" in words else 1]).unlink()
    result = run(*words)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    expected = next((code for start, code in STATUS.items() if text[10:].startswith(start)), 0)
    assert result.exit_code == expected, result.output
