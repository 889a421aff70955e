"""Commands from the outside: stdout is the answer, stderr the rest, the status says how it went."""

import csv
import io
import json
import os
import re
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attn_tune.cli import app, commands
from attn_tune.schema import Status
from tests.cli.fakes import DEVICE, ENVIRONMENT, POINT, SIGNATURE, FakeExecutor, fill
from tests.db.facts import make_trial


def run(*words):
    result = CliRunner().invoke(app, [str(w) for w in words], prog_name="attn-tune")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    path = tmp_path_factory.mktemp("lab") / "lab.db"
    fill(path)
    return path


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """Nothing of the real user is read or written."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("attn_tune.tuner.run.fleet.lease.lease_folder", lambda: tmp_path / "leases")
    monkeypatch.delenv("ATTN_TUNE_DB", raising=False)
    monkeypatch.delenv("ATTN_TUNE_PACKS", raising=False)


ANSWERS = [
    (["grids"], "grids"),
    (["grids", "gpt-oss-20b"], "points"),
    (["devices", "--device", "nvidia-h200"], "devices"),
    (["devices", "--all"], "known"),
    (["kernels", POINT, "--device", "cpu"], "kernels"),
    (["plan", "--grid", SIGNATURE, "--device", "cpu"], "totals"),
    (["explain", POINT, "--device", "nvidia-h200"], "fwd"),
    (["doctor"], "checks"),
]
LAB_ANSWERS = [
    (["status"], "statuses"),
    (["best", POINT], "decisions"),
    (["best", SIGNATURE, "--direction", "bwd"], "decisions"),
    (["report"], "summary"),
    (["report", "--section", "statuses"], "statuses"),
    (["plan", "--grid", SIGNATURE, "--device", "cpu"], "kernels"),
    (["doctor"], "checks"),
]


@pytest.mark.parametrize(("words", "key"), ANSWERS, ids=lambda v: " ".join(v)[:30])
def test_json_is_all_that_is_on_stdout(words, key):
    result = run(*words, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)[key]


@pytest.mark.parametrize(("words", "key"), LAB_ANSWERS, ids=lambda v: " ".join(v)[:30])
def test_json_of_a_lab(lab, words, key):
    result = run(*words, "--db", lab, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)[key]


@pytest.mark.parametrize("words", [w for w, _ in commands()], ids=" ".join)
def test_help_of_a_command_has_a_sentence_and_its_options(words):
    result = run(*words, "--help")
    assert result.exit_code == 0
    assert f"Usage: attn-tune {' '.join(words)} " in result.stdout
    assert "--help" in result.stdout


def test_help_names_at_most_fifteen_commands_with_their_first_sentences():
    shown = " ".join(run("--help").stdout.replace("│", " ").split())
    top = {words[0]: command for words, command in commands() if len(words) == 1}
    assert len(top) <= 15
    for name, command in top.items():
        assert f"{name} {command.help.partition(chr(10))[0]}" in shown


def test_report_shows_winners_statuses_and_coverage(lab):
    shown = run("report", "--db", lab).stdout
    assert shown.index("Summary") < shown.index("Statuses") < shown.index("Coverage")
    assert POINT in shown
    assert "chunk_q=" in shown


def test_report_as_csv_and_markdown(lab):
    rows = list(csv.DictReader(io.StringIO(run("report", "--db", lab, "-f", "csv").stdout)))
    assert {row["direction"] for row in rows} == {"fwd", "bwd"}
    assert all(float(row["median_ns"]) > 0 for row in rows)
    assert all(float(row["worst_error"]) == 0.25 for row in rows)
    markdown = run("report", "--db", lab, "-f", "markdown").stdout.splitlines()
    assert markdown[0].startswith("| point | direction |")
    assert len(markdown) == 2 + len(rows)


def test_report_of_a_grid_shows_what_is_not_covered(lab):
    result = run("report", "--db", lab, "--grid", "cpu-smoke", "--section", "coverage", "--json")
    covered = {row["point"]: row["fwd"] for row in json.loads(result.stdout)["coverage"]}
    assert covered[POINT] is True
    assert covered["cpu-smoke.gpt-oss-local/1x128"] is False


def test_best_says_how_to_tune_what_was_not_tuned(lab):
    result = run("best", "llama3-8b/4x4k", "--db", lab)
    assert result.exit_code == 3
    assert result.stdout == ""
    assert "attn-tune sweep --grid" in result.stderr


def test_status_of_a_finished_run(lab):
    assert "run 1 is finished, on cpu-x86_64" in run("status", "--db", lab).stdout


LARGE = "flash_attention/v1 b=4 t=4096 s=4096 n=32 k=8 h=128 v=128 dtype=bfloat16 causal=1"


@pytest.mark.parametrize(
    ("words", "strategy", "least", "most"),
    [
        (["--effort", "quick"], "portfolio", 0.04, 0.15),
        ([], "surrogate", 0.14, 0.2),
        (["--strategy", "random"], "random", 0.14, 0.2),
        (["--effort", "full"], "exhaustive", 1.0, 1.1),
        (["--strategy", "portfolio", "--effort", "full"], "portfolio", 1.0, 1.1),
    ],
)
def test_plan_says_how_many_configs_the_strategy_will_try(words, strategy, least, most):
    point = ["--grid", LARGE, "--device", "nvidia-h200", "-k", "triton"]
    answer = json.loads(run("plan", *point, *words, "--json").stdout)
    assert answer["strategy"] == strategy
    for row in answer["kernels"]:
        assert least * row["configs"] <= row["to_try"] <= most * row["configs"]


def test_plan_refuses_a_strategy_that_contradicts_the_effort():
    result = run("plan", "--grid", LARGE, "--effort", "quick", "--strategy", "exhaustive")
    assert result.exit_code == 2


def test_plan_counts_what_is_known(lab):
    # The plan is of another environment than the fake device's, so nothing is known.
    result = run("plan", "--grid", SIGNATURE, "--db", lab, "--device", "cpu")
    assert "0 tried before" in result.stdout
    assert "2 cases" in result.stdout


def test_plan_says_where_its_estimate_comes_from(tmp_path):
    point = ["--grid", SIGNATURE, "--device", "cpu"]
    none = ["--db", tmp_path / "none.db"]
    words = "a guess by the sizes, references and feature problems among them, as no sweep on such a device is recorded"
    assert words in " ".join(run("plan", *point, *none).stdout.split())
    small = json.loads(run("plan", *point, *none, "--json").stdout)["totals"]
    large = json.loads(run("plan", "--grid", LARGE, "--device", "cpu", *none, "--json").stdout)["totals"]
    assert small["estimated_from"] == large["estimated_from"] == "sizes"
    assert 0 < small["least_s"] < small["most_s"] < 600 < large["least_s"] < large["most_s"]


def test_plan_takes_the_pace_that_the_database_has(tmp_path):
    from attn_tune.db import Database
    from attn_tune.devices.identity import device_from_kind

    with Database.open(tmp_path / "lab.db", create=True) as database:
        device = device_from_kind("cpu")
        run_id = database.begin_run(device=device, environment=ENVIRONMENT, argv=["attn-tune", "sweep"])
        for size in range(4):
            database.record(run_id, make_trial({"size": size}, device=device))
        database.end_run(run_id, "finished")
        with database.transaction() as connection:
            connection.execute("UPDATE run SET ended = strftime('%Y-%m-%dT%H:%M:%fZ', started, '12 seconds')")
    at = ["plan", "--grid", SIGNATURE, "--device", "cpu", "--db", tmp_path / "lab.db"]
    totals = json.loads(run(*at, "--json").stdout)["totals"]
    assert (totals["least_s"], totals["estimated_from"]) == (3 * totals["to_try"], "recorded")
    assert totals["least_s"] == totals["most_s"]
    assert "as the last 4 configs of the database on such a device (3 s each)" in run(*at).stdout


def test_export_then_import_and_explain(lab, tmp_path, monkeypatch):
    pack = tmp_path / "mine.atpack"
    written = json.loads(run("export", pack, "--db", lab, "--json").stdout)
    assert written["rows"] == 2
    other = tmp_path / "other.db"
    assert "2 problems added" in run("pack", "import", pack, "--db", other).stdout
    assert "2 unchanged" in run("pack", "import", pack, "--db", other).stdout
    installed = run("pack", "import", pack, "--to", "user")
    assert installed.exit_code == 0
    assert (tmp_path / "data/attn-tune/packs/mine.atpack").read_bytes() == pack.read_bytes()
    assert run("pack", "import", pack, "--to", "user").exit_code == 0, "an equal pack may stay"


def test_explain_says_whether_the_lab_database_agrees(lab, monkeypatch):
    asked = ["explain", SIGNATURE, "--device", "cpu", "--db", lab]
    assert f"{lab} decided fwd otherwise: " in run(*asked).stdout
    # A row of the fakes' kernel source would be stale here.
    monkeypatch.setattr("attn_tune.commands.explain._is_answer", lambda decision, one: True)
    told = run(*asked).stdout
    assert f"{lab} agrees: what it found best is what calls get." in told
    assert "otherwise" not in told
    assert "agrees" not in run("explain", SIGNATURE, "--device", "cpu").stdout


def test_export_refuses_what_is_there(lab, tmp_path):
    pack = tmp_path / "mine"
    assert run("export", pack, "--db", lab).exit_code == 0
    again = run("export", pack, "--db", lab)
    assert (again.exit_code, again.stdout) == (4, "")
    assert run("export", pack, "--db", lab, "--overwrite").exit_code == 0


def test_a_changed_pack_is_refused(lab, tmp_path):
    pack = tmp_path / "mine"
    run("export", pack, "--db", lab)
    manifest = pack / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"mine"', '"nine"'))
    for where in (["--to", "user"], ["--db", tmp_path / "x.db"]):
        result = run("pack", "import", pack, *where)
        assert result.exit_code == 5
        assert "checksum" in result.stderr
    assert not (tmp_path / "data/attn-tune/packs/mine").exists()


def errors(tmp_path):
    text = tmp_path / "notes.db"
    return {
        "no command": (["swep"], 2, "Did you mean 'sweep'?"),
        "no option": (["sweep", "--gird", "x"], 2, "--grid"),
        "device and target": (["plan", "-g", "cpu-smoke", "--device", "cpu", "--target", "sm_90"], 2, "give one of"),
        "unknown target": (["plan", "-g", "cpu-smoke", "--target", "tpu-v9"], 2, "tpu-v6e"),
        "devices of a target": (
            ["sweep", "-g", "cpu-smoke", "--target", "tpu-v6e", "--devices", "all", "--db", tmp_path / "x.db"],
            2,
            "leave out --executor and --devices",
        ),
        "no grid": (["sweep"], 2, "choose one with --grid"),
        "unknown grid": (["plan", "-g", "lama3-8b"], 2, "did you mean 'llama3-8b'"),
        "unknown kernel": (["plan", "-g", "cpu-smoke", "-k", "tritn"], 2, "unknown kernel 'tritn'"),
        "unknown device": (["devices", "--device", "nvidia-h20O"], 2, "nvidia-h200"),
        "all of one device": (["devices", "--all", "--device", "cpu"], 2, "leave --device out"),
        "bad direction": (["plan", "-g", "cpu-smoke", "-d", "up"], 2, "fwd"),
        "bad budget": (["sweep", "-g", "cpu-smoke", "--budget", "soon"], 2, "as in 10m"),
        "bad lengths": (["plan", "-g", "cpu-smoke", "--lengths", "4q"], 2, "'4q'"),
        "no database": (["report", "--db", tmp_path / "none.db"], 3, "none.db"),
        "no status": (["status", "--db", tmp_path / "none.db"], 3, "none.db"),
        "not a database": (["report", "--db", text], 5, "notes.db"),
        "a folder": (["pack", "import", tmp_path, "--db", tmp_path / "x.db"], 5, ""),
        "no pack": (
            ["pack", "import", tmp_path / "none.atpack", "--db", tmp_path / "x.db"],
            4,
            "none",
        ),
    }


@pytest.mark.parametrize("name", errors(Path("anywhere")))
def test_an_error_is_a_line_on_stderr_and_a_status(tmp_path, name):
    (tmp_path / "notes.db").write_text("a file of some other kind, and not a short one\n" * 20)
    words, status, message = errors(tmp_path)[name]
    result = run(*words)
    assert result.exit_code == status, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_debug_shows_the_traceback(tmp_path):
    result = run("--debug", "report", "--db", tmp_path / "none.db")
    assert result.exit_code == 3
    assert "Traceback" in result.stderr
    assert result.stderr.rstrip().splitlines()[-1].startswith("error: ")


class FakeContext(FakeExecutor):
    """The fake device in the place of the worker process."""

    status = Status.OK

    def __init__(self, **kwargs):
        super().__init__(status=type(self).status)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        return None


@pytest.fixture
def fake_worker(monkeypatch):
    monkeypatch.setattr("attn_tune.tuner.run.executor.IsolatedExecutor", FakeContext)
    monkeypatch.setattr(FakeContext, "status", Status.OK)
    return FakeContext


def test_a_resumed_sweep_counts_the_kernels_that_cannot_run_as_the_first_run_did(fake_worker, tmp_path):
    words = ("sweep", "--grid", SIGNATURE, "-d", "fwd", "--db", tmp_path / "lab.db")
    first, again = (re.findall(r"\d+ kernels cannot run here", run(*words).stdout) for _ in range(2))
    assert first == again
    assert len(first) == 1


def test_a_plan_of_kernels_that_cannot_run_says_why(tmp_path):
    result = run("plan", "--grid", SIGNATURE, "--kernel", "triton", "-d", "fwd", "--db", tmp_path / "lab.db")
    assert "Triton kernels need an NVIDIA GPU" in result.stdout
    assert "cannot run here" not in result.stdout


def test_sweep_ends_with_winners_and_what_to_do_next(fake_worker, tmp_path):
    db = tmp_path / "new" / "lab.db"
    result = run("sweep", "--grid", SIGNATURE, "--kernel", "xla", "--db", db)
    assert result.exit_code == 0, result.stderr
    assert "Winners on cpu-x86_64" in result.stdout
    assert f"attn-tune export my-pack --db {db}" in result.stdout
    assert "configs/s" in result.stderr
    again = run("sweep", "--grid", SIGNATURE, "--kernel", "xla", "--db", db)
    assert "Nothing was left to do" in again.stdout
    answer = run("sweep", "--grid", SIGNATURE, "-k", "xla", "--db", db, "--json")
    data = json.loads(answer.stdout)
    assert data["trials"] == 0
    assert data["tried_before"] > 0
    assert data["device"] == DEVICE.identity
    assert {row["direction"] for row in data["decisions"]} == {"fwd", "bwd"}


def test_sweep_without_a_right_config_fails_and_says_for_what(fake_worker, monkeypatch, tmp_path):
    monkeypatch.setattr(fake_worker, "status", Status.INCORRECT)
    result = run("sweep", "--grid", SIGNATURE, "-k", "xla", "-d", "bwd", "--db", tmp_path / "l.db")
    assert result.exit_code == 1
    assert "no valid config:" in result.stderr
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("the commonest failure, ")]
    assert "flash_attention/xla bwd incorrect" in line
    assert f"'attn-tune report --section failures --db {tmp_path / 'l.db'}' lists all" in line
    assert "incorrect" in result.stdout


def test_dry_run_touches_nothing(fake_worker, tmp_path):
    db = tmp_path / "lab.db"
    result = run("sweep", "--grid", SIGNATURE, "--dry-run", "--db", db)
    assert result.exit_code == 0
    assert "configs to try" in result.stdout
    assert not db.exists()


def test_plan_of_a_target_is_that_of_a_sweep_which_only_compiles(tmp_path):
    words = ("--grid", SIGNATURE, "--target", "TPU-7x", "--db", tmp_path / "lab.db", "--json")
    plan, sweep = (json.loads(run(*command, *words).stdout) for command in (["plan"], ["sweep", "--dry-run"]))
    assert plan == sweep
    assert plan["device"]["variant"] == "tpu-v7x"
    # No other kernels can be compiled for a TPU.
    assert all("/pallas_tpu" in row["kernel"] for row in plan["kernels"])


def test_a_sweep_for_a_target_on_which_nothing_fits_fails_and_says_why(tmp_path):
    pytest.importorskip("libtpu")
    huge = "paged_decode/v1 b=512 t=1 s=65536 n=32 k=8 h=128 v=128 page=16 layout=head_first dtype=bfloat16"
    words = ("--grid", huge, "--kernel", "paged_decode/pallas_tpu_paged", "--target", "tpu-v6e")
    result = run("sweep", *words, "--db", tmp_path / "lab.db")
    assert result.exit_code == 1
    assert "No config fits tpu-v6e" in result.stdout + result.stderr
    assert "not 8192 KiB of page table" in result.stdout + result.stderr


def test_a_stop_during_the_sweep_is_130(fake_worker, monkeypatch, tmp_path):
    monkeypatch.setattr(
        FakeContext,
        "run",
        lambda self, request: (
            os.kill(os.getpid(), signal.SIGINT),
            FakeExecutor.run(self, request),
        )[1],
    )
    before = signal.getsignal(signal.SIGINT)
    result = run("sweep", "-g", SIGNATURE, "-k", "xla", "-d", "fwd", "--db", tmp_path / "lab.db")
    assert result.exit_code == 130
    assert "the same command continues" in result.stdout
    assert signal.getsignal(signal.SIGINT) is before
