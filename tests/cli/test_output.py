"""Tables that a terminal of 80 columns can show, and errors of one line."""

import json
import sys

import pandas as pd
import pytest
from typer.testing import CliRunner

from attn_tune.cli import app, commands
from attn_tune.commands.shared import output
from attn_tune.db import Database
from attn_tune.reports.layout import text_width
from attn_tune.schema import Status
from tests.cli.fakes import DEVICE, POINT, fill
from tests.db.facts import begin, make_trial

LLAMA = ("--grid", "llama3-8b", "--device", "nvidia-h200", "--op", "flash_attention")


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="attn-tune")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


def test_plan_counts_the_kernels_that_cannot_do_a_case_and_lists_them_when_asked():
    brief, whole = run("plan", *LLAMA).stdout, run("plan", *LLAMA, "--all").stdout
    rows = json.loads(run("plan", *LLAMA, "--json").stdout)["kernels"]
    assert "does not implement" in whole
    assert "does not implement" not in brief
    assert "pairs of case and kernel left out" in brief
    assert {row["kernel"] for row in rows if row["configs"]} == {
        word for line in brief.splitlines() for word in line.split() if "attention/" in word
    }


def test_plan_of_what_no_kernel_can_do_says_why():
    words = ("-k", "flash_attention/triton_hopper", "-d", "bwd")
    assert "does not implement bwd" in run("plan", *LLAMA, *words).stdout


def test_report_names_no_status_that_no_shown_kernel_has_and_says_that_nothing_failed(tmp_path):
    path = tmp_path / "lab.db"
    fill(path)
    with Database.open(path) as database:
        refused = make_trial({}, kernel="flash_attention/triton", status=Status.UNSUPPORTED, device=DEVICE)
        database.record(begin(database, DEVICE), refused)
    shown = run("report", "--db", path).stdout
    assert shown.count("1 kernel can do none of this") == 1
    (head,) = (line for line in shown.splitlines() if line.startswith("kernel") and "trials" in line)
    assert head.split() == ["kernel", "direction", "trials", "ok"]
    assert "Failures: none" in shown
    assert run("report", "--db", path, "--section", "predicted").stdout == "Predicted: none\n"


def test_kernels_lists_the_directions_that_a_kernel_has():
    words = ("kernels", "--device", "nvidia-h200", "-k", "flash_attention/triton_hopper")
    shown = run(*words).stdout
    assert "fwd" in shown
    assert "does not implement bwd" not in shown
    rows = json.loads(run(*words, "--json").stdout)["kernels"]
    assert [(row["direction"], row["supported"]) for row in rows] == [("fwd", True), ("bwd", False)]


def test_kernels_of_a_point_are_those_of_its_op_unless_others_are_named():
    shown = {row["kernel"] for row in json.loads(run("kernels", POINT, "--json").stdout)["kernels"]}
    assert "flash_attention/xla" in shown
    assert {name.partition("/")[0] for name in shown} == {"flash_attention"}
    assert "not of the op of" in run("kernels", POINT, "-k", "gla/xla").stdout


def test_kernels_names_the_problem_whose_configs_it_counts_where_the_column_has_no_room(monkeypatch):
    words = ("kernels", "--device", "cpu", "-k", "gated_delta_rule/xla", "-d", "fwd")
    monkeypatch.setenv("COLUMNS", "80")
    (row,) = json.loads(run(*words, "--json").stdout)["kernels"]
    narrow = " ".join(run(*words).stdout.split())
    assert f"example of xla fwd: {row['example']}, {row['signature']} " in narrow
    assert "examples: " in run("kernels", "--device", "cpu").stdout
    monkeypatch.setenv("COLUMNS", "250")
    wide = run(*words).stdout
    assert "example of" not in wide
    assert row["example"] in wide


def test_grids_leaves_addresses_to_json():
    assert "https://" not in run("grids").stdout
    assert any(row["source"] for row in json.loads(run("grids", "--json").stdout)["grids"])


def test_grids_cuts_no_signature_and_shows_no_column_that_says_nothing(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("grids", "qwen3-next-linear-steps").stdout
    assert "…" not in shown
    assert shown.startswith("Directions fwd\n")
    assert "calls" not in shown
    points = json.loads(run("grids", "qwen3-next-linear-steps", "--json").stdout)["points"]
    assert {point["calls"] for point in points} == {0}
    for point in points:
        assert point["point"] in shown
        assert set(point["signature"].split()) <= set(shown.split())


def test_a_refused_export_is_one_error_line_after_the_rows(tmp_path):
    fill(tmp_path / "lab.db")
    forbidden = run("override", "add", "never", "flash_attention/xla", "--reason", "hangs")
    assert forbidden.exit_code == 0, forbidden.stderr
    done = run("export", tmp_path / "p.atpack", "--db", tmp_path / "lab.db")
    *rows, last = done.stderr.splitlines()
    assert last.startswith("error: 2 of 2 rows may not be shipped: its config is in quarantine")
    assert [row.startswith("  flash_attention/xla ") for row in rows] == [True, True]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "--effort", "quik"], "(did you mean 'quick'?)"),
        (["report", "--section", "sumary"], "(did you mean 'summary'?)"),
        (["inspect", "x"], "no such command 'inspect' (did you mean 'attn-tune pack inspect'?)"),
        (["convert"], "'attn-tune lab convert' or 'attn-tune pack convert'"),
        (["plan", "--point", "cpu-smoke.llama3/1x128"], "name it with --grid"),
        (["plan", "--grid", "gla-1.3b/1x4k"], "for one point give --grid gla-1.3b --point 'gla-1.3b/1x4k'"),
        (["explain", "paged_decode"], "'paged_decode' is an op, no grid point; name a point of it, such as "),
        (["plan", "--grid", "kda"], "'kda' is an op, no grid; grids of it: kimi-linear, kimi-linear-steps\n"),
        (["plan", "--grid", "attention"], "'attention' is an op, no grid; no preset has a point of it\n"),
        (["plan", "--grid", "zzz"], "unknown grid 'zzz'; 'attn-tune grids' lists them\n"),
        (["sweep", "--executor", "zzz"], "'zzz' is not one of 'local', 'ray'; see"),
    ],
)
def test_a_wrong_choice_lists_the_near_ones(words, said):
    done = run(*words)
    assert (done.exit_code, said in done.stderr) == (2, True)
    assert "Value error" not in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("flash_attention/v2 b=1", "is not of flash_attention/v1"),
        ("flash_attention/v1 b=1 dtyp=float32", "unknown field 'dtyp'; did you mean 'dtype'"),
        ("flash_attention b=1", "lacks a version after the op; a signature begins with flash_attention/v1"),
        ("flash_attenton/v1 b=1", "unknown op 'flash_attenton'; did you mean 'flash_attention'"),
    ],
)
def test_an_error_names_the_wrong_part_of_a_signature(text, said):
    done = run("explain", text)
    assert (done.exit_code, said in done.stderr) == (2, True)


def test_an_unknown_device_is_not_answered_with_all_names():
    done = run("devices", "--device", "foo")
    assert (done.exit_code, len(done.stderr) < 100) == (2, True)
    assert "did you mean 'nvidia-h20'" in run("devices", "--device", "nvidia-h2O").stderr


def test_doctor_names_packs_before_their_paths_and_no_path_of_its_own(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("doctor").stdout
    # A path of the user's own stays whole.
    assert all(len(line) <= 80 or len(line.split()) == 1 for line in shown.splitlines())
    assert " rows of attn-tune\n" in shown
    assert "/shipped/" not in shown


def test_explain_says_equal_steps_once():
    words = ("explain", "llama3-8b/4x4k", "-d", "fwd", "--device", "nvidia-b200")
    brief, whole = run(*words).stdout, run(*words, "--all").stdout
    assert brief.count("no rows of flash_attention.fwd") == 1
    assert whole.count("no rows of flash_attention.fwd") > 1
    assert " packs " in brief


FRAME = pd.DataFrame({"point": ["a b " * 20, "c"], "before": ["c d " * 20, "e"], "gain_over_untuned": [1e3, 2]}).assign(
    direction="fwd", samples=3, heuristic_ns=5_000
)


@pytest.mark.parametrize(("columns", "gone"), [("40", ()), ("60", ("samples", "untuned")), ("300", ())])
def test_a_table_fits_the_terminal_and_names_what_is_gone(monkeypatch, capsys, columns, gone):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output.emit_frame(FRAME)
    shown, said = capsys.readouterr()
    assert max(map(len, shown.splitlines())) <= int(columns)
    assert all(word in shown for word in ("point", "before", "over", "untuned", "1000.00x", "direction"))
    assert (f"not shown: {', '.join(gone)}; cut: point, before (all of it" in " ".join(shown.split())) == bool(gone)
    assert said == ""


def test_a_pipe_is_as_wide_as_the_table_or_as_columns_says(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    output.emit_frame(FRAME)
    assert max(map(len, capsys.readouterr().out.splitlines())) > 160
    monkeypatch.setenv("COLUMNS", "60")
    output.emit_frame(FRAME)
    output.say("one word after the other " * 9)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 80])
def test_tables_of_the_commands_fit_the_width(tmp_path, monkeypatch, columns):
    db = ("--db", tmp_path / "lab.db")
    fill(tmp_path / "lab.db")
    monkeypatch.chdir(tmp_path)
    assert run("export", "p.atpack", *db, "--allow-noisy").exit_code == 0
    monkeypatch.setenv("COLUMNS", str(columns))
    for words in (
        ("report", *db),
        ("best", POINT, *db),
        ("plan", *LLAMA, "--all"),
        ("kernels", "--all"),
        ("grids",),
        ("grids", "gemma3-27b"),
        ("devices", "--all"),
        ("pack", "inspect", "p.atpack", "--rows"),
        ("pack", "coverage", "p.atpack"),
    ):
        done = run(*words)
        assert done.exit_code == 0, (words, done.stderr)
        # A digest is one word, to be copied.
        lines = [line for line in done.stdout.splitlines() if "b2:" not in line and str(tmp_path) not in line]
        assert max(map(text_width, lines)) <= columns, words


@pytest.mark.parametrize("words", [words for words, _ in commands()], ids=" ".join)
def test_no_word_of_a_help_page_is_cut_off(monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "80")
    shown = run(*words, "--help").stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown


def test_a_table_has_no_blank_column(capsys):
    frame = pd.DataFrame({"kernel": ["a", "b"], "part": ["", "dq"], "remark": "", "time": [None, 1]})
    output.emit_frame(frame)
    assert capsys.readouterr().out.split()[:3] == ["kernel", "part", "time"]
