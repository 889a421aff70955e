"""The examples that the help of commands shows: every one is understood, and what needs no device runs."""

import re
import shlex
import shutil

import pytest
from typer.testing import CliRunner

from attn_tune.cli import app
from attn_tune.commands.shared.group import COMMANDS, load_command
from attn_tune.runtime import snapshot
from tests.cli.fakes import fill


def examples():
    """(command words, example) of every help page, inner commands too."""
    for name in COMMANDS:
        command = load_command(name)
        pages = [command, *getattr(command, "commands", {}).values()]
        for page in pages:
            help_text = " ".join((page.help or "").split())
            for text in re.findall(r"Example: (attn-tune .*?)(?= Example: |$)", help_text):
                yield text.strip()


EXAMPLES = list(dict.fromkeys(examples()))
# These compile, or need a program, a GPU or the spool of misses.
NEEDS = ("sweep", "validate", "audit", "misses import", "misses clear", "sign")
# Exit codes of examples that ask for something missing: a point that was not swept, a key not in quarantine.
STATUS = {"best": 3, "quarantine remove": 3, "pin remove": 3, "export": 3, "verify": 5}


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
    run("freeze", folder / "job.lock", "--grid", "cpu-smoke", "--device", "cpu")
    (folder / "keys").mkdir()
    return folder


def run(*words):
    snapshot._current = None
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="attn-tune")


def test_there_is_an_example_of_every_command():
    assert {text.split()[1] for text in EXAMPLES} == set(COMMANDS)


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_is_understood(text):
    words = shlex.split(text.partition(" > ")[0])[1:]
    command = load_command(words.pop(0))
    while inner := getattr(command, "commands", {}).get(words[0] if words else ""):
        command, _ = inner, words.pop(0)
    command.make_context("attn-tune", words)


@pytest.mark.parametrize("text", [t for t in EXAMPLES if not t[10:].startswith(NEEDS)])
def test_an_example_runs(text, made, tmp_path, monkeypatch):
    folder = tmp_path / "work"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    for name in ("PACKS", "PINS", "QUARANTINE", "LOCKFILE", "REQUIRE_SIGNED", "TRUSTED_KEYS"):
        monkeypatch.delenv(f"ATTN_TUNE_{name}", raising=False)
    monkeypatch.setenv("ATTN_TUNE_DB", str(folder / "lab.db"))
    monkeypatch.setattr(snapshot, "_current", None)
    monkeypatch.setattr(snapshot, "_lockfile_path", None)
    words = shlex.split(text.partition(" > ")[0])[1:]
    if words[0] in ("export", "freeze"):
        (folder / words[1]).unlink()
    result = run(*words)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    expected = next((code for start, code in STATUS.items() if text[10:].startswith(start)), 0)
    assert result.exit_code == expected, result.output
