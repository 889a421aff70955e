"""Names of a stored trial that try to steer a terminal, and stored rows that no report can show."""

import contextlib
import dataclasses
import sqlite3
import unicodedata

import pytest
from typer.testing import CliRunner

from attn_tune.cli import app
from attn_tune.db import Database
from attn_tune.schema import Status
from tests.db.facts import DEVICE, begin, make_trial

EVIL = "x\x1b[31m\x00\r\u202e<img src=http://evil.test>y"


def run(*words):
    return CliRunner().invoke(app, [*map(str, words)], prog_name="attn-tune")


def fill(path):
    with Database.open(path, create=True) as database:
        evil = {"device": dataclasses.replace(DEVICE, variant=EVIL), "kernel": f"flash_attention/{EVIL}"}
        database.record(begin(database), make_trial({EVIL: EVIL}, **evil))
        database.record(begin(database), make_trial(**evil, status=Status.CRASHED, reason=EVIL))
        database.rebuild_decisions()
    return path


@pytest.mark.parametrize(
    "words",
    [
        ["report"],
        ["report", "-f", "markdown"],
        ["report", "-f", "csv"],
        ["report", "--html", "-"],
        ["report", "-s", "failures", "-f", "markdown"],
        ["lab", "query", f'SELECT device AS "{EVIL[:6]}" FROM trial'],
        ["report", "--db", "x\x1b.db"],
    ],
    ids=["table", "markdown", "csv", "html", "failures", "query", "error"],
)
def test_no_control_character_of_a_name_reaches_an_output(tmp_path, words):
    words = words if "--db" in words else [*words, "--db", fill(tmp_path / "lab.db")]
    ended = run(*words)
    assert ended.exit_code == (3 if "x\x1b.db" in words else 0), ended.output
    written = ended.stdout + ended.stderr
    assert "\\x1b" in written
    assert {c for c in written if unicodedata.category(c) in ("Cc", "Cf")} <= {"\n"}
    assert "<img" not in ended.stdout or not {"markdown", "-"} & set(words)


def test_a_time_that_no_report_can_show_is_one_error_line(tmp_path):
    path = fill(tmp_path / "lab.db")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as raw:
        for (name,) in raw.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            raw.execute(f"DROP TRIGGER {name}")
        raw.execute("UPDATE trial SET started = '9999-01-01T00:00:00.000000Z' WHERE id = 2")
    for words in (["report"], ["report", "--html", tmp_path / "page.html"]):
        ended = run(*words, "--db", path)
        assert (ended.exit_code, len(ended.stderr.splitlines())) == (5, 1)
        assert "row 2 of trial cannot be read: its started is" in ended.stderr
