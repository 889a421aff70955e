"""``attn-tune lab compare``: databases, packs, filters, exit codes and formats."""

import csv
import io
import json
import os

import pytest
from typer.testing import CliRunner

from attn_tune.cli import app
from attn_tune.db import Database
from attn_tune.schema import Status
from tests.cli.fakes import SIGNATURE, fill
from tests.db.facts import OTHER_DEVICE, begin, make_trial
from tests.db.sweeps import problem, record_sweep
from tests.runtime.packbuilder import pack_files, row, sig, write_folder, write_zip

TIMES = {place: 100_000 + 10_000 * place for place in range(4)}


def run(*words):
    return CliRunner().invoke(app, ["lab", "compare", *map(str, words)], prog_name="attn-tune")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


@pytest.fixture(scope="module")
def labs(tmp_path_factory):
    """A sweep, one with a planted slowdown, and an equal one."""
    folder = tmp_path_factory.mktemp("labs")
    return (
        record_sweep(folder / "a.db", TIMES, seed=1),
        record_sweep(folder / "slow.db", TIMES | {2: TIMES[2] * 1.05, 5: 1_000_000}, seed=2),
        record_sweep(folder / "equal.db", TIMES, seed=3),
    )


def test_a_planted_slowdown_is_named_and_fails_where_asked(labs):
    a, slow, equal = labs
    shown = run(a, slow)
    assert shown.exit_code == 0, shown.stderr
    assert "1 worse, 3 undecided, 1 only in B" in shown.stdout
    assert "b=3" in shown.stdout
    assert "b=2" not in shown.stdout
    failed = run(a, slow, "--fail-on", "worse", "--fail-on", "missing")
    assert (failed.exit_code, failed.stderr.splitlines()[-1]) == (6, "exit code 6: --fail-on worse")
    assert run(slow, a, "--fail-on", "worse").exit_code == 0, "it became better"
    assert run(a, equal, "--fail-on", "worse", "--fail-on", "changed", "--fail-on", "missing").exit_code == 0
    assert "b=2" in run(a, slow, "--all").stdout


def test_problems_of_one_side_fail_where_asked(labs):
    a, slow, _ = labs
    assert run(slow, a, "--fail-on", "missing").exit_code == 6
    assert run(a, slow, "--fail-on", "missing").exit_code == 0


def test_another_config_fails_where_asked(labs, tmp_path):
    other = record_sweep(tmp_path / "other.db", TIMES, seed=4, config={"block_q": 64})
    result = run(labs[0], other, "--fail-on", "changed", "--all")
    assert result.exit_code == 6
    assert "block_q 128 -> 64" in result.stdout
    assert "B chose another config for 4 problems" in result.stdout


def test_a_slower_board_fails_where_asked(tmp_path):
    many = dict.fromkeys(range(8), 100_000)
    a = record_sweep(tmp_path / "a.db", many, seed=1, noise=0.002)
    b = record_sweep(tmp_path / "b.db", {place: ns * 1.03 for place, ns in many.items()}, seed=2, noise=0.002)
    assert run(a, b, "--fail-on", "worse").exit_code == 0
    assert "8 programs with one config, software and source in both took 1.03" in run(a, b).stdout
    assert run(a, b, "--fail-on", "shifted").exit_code == 6
    assert run(a, b, "--fail-on", "shifted", "--margin", "4").exit_code == 0
    assert run(b, a, "--fail-on", "shifted").exit_code == 0


SCHEMA = {
    "a": ["name", "kind"],
    "b": ["name", "kind"],
    "rule": ["margin", "margin_ns", "level", "correction", "confidence"],
    "counts": ["worse", "better", "undecided", "only_a", "only_b"],
    "changed": ["kernel", "config"],
    "mean": None,
    "shifts": None,
    "rows": None,
}
ROW = [
    "verdict", "op", "point", "direction", "device", "a_ns", "b_ns", "b_over_a", "low", "high", "chance", "basis",
    "changed", "reason", "needs", "bound", "a_kernel", "b_kernel", "a_config", "b_config", "signature",
]  # fmt: skip


def test_json_has_the_documented_keys(labs):
    found = json.loads(run(*labs[:2], "--json").stdout)
    assert {key: list(value) if isinstance(value, dict) else None for key, value in found.items()} == SCHEMA
    assert all(list(one) == ROW for one in found["rows"])
    assert [list(one) for one in found["shifts"]] == [["device", "programs", "ratio", "noise", "is_known"]]
    worse, *_, alone = found["rows"]
    assert (worse["verdict"], worse["basis"], worse["signature"]) == ("worse", "unpaired", problem(2).text)
    assert worse["low"] < 1.05 < worse["high"]
    assert worse["a_config"] == {"block_q": 128, "num_warps": 4}
    assert (alone["verdict"], alone["a_ns"], alone["a_config"]) == ("only_b", None, None)
    assert type(alone["b_ns"]) is int
    assert alone["b_ns"] == pytest.approx(1_000_000, rel=0.02)


def test_csv_and_markdown(labs):
    rows = list(csv.DictReader(io.StringIO(run(*labs[:2], "--format", "csv").stdout)))
    assert list(rows[0]) == ROW
    assert json.loads(rows[0]["a_config"])["block_q"] == 128
    text = run(*labs[:2], "-f", "markdown").stdout
    assert text.startswith("### ")
    assert "<details><summary>3 undecided</summary>" in text


def test_the_page_is_written_with_equal_bytes(labs, tmp_path):
    paths = [tmp_path / name for name in ("x.html", "y.html")]
    for path in paths:
        assert run(*labs[:2], "--html", path).exit_code == 0
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert b'class="row worse"' in paths[0].read_bytes()
    taken = run(*labs[:2], "--html", paths[0])
    assert (taken.exit_code, "--overwrite" in taken.stderr) == (4, True)
    assert run(*labs[:2], "--html", paths[0], "--overwrite").exit_code == 0
    before = labs[0].read_bytes()
    refused = run(*labs[:2], "--html", labs[0], "--overwrite")
    assert (refused.exit_code, "is a database" in refused.stderr) == (4, True)
    assert labs[0].read_bytes() == before
    assert run(*labs[:2], "--html", tmp_path / "none" / "x.html").exit_code == 0, "the folder is made"
    refused = run(*labs[:2], "--html", paths[0] / "x.html")
    assert (refused.exit_code, "cannot be written" in refused.stderr) == (4, True)


def test_options_narrow_what_is_compared(tmp_path):
    a, b = tmp_path / "a.db", tmp_path / "b.db"
    for path in (a, b):
        fill(path)
        fill(path, grid=SIGNATURE.replace("t=128 s=128", "t=256 s=256"), directions=("fwd",))

    def compared(*words):
        result = run(a, b, "--json", *words)
        assert result.exit_code == 0, result.stderr
        return {(one["point"].partition(" ")[0], one["direction"]) for one in json.loads(result.stdout)["rows"]}

    assert len(compared()) == 3
    assert compared("--point", "llama3") == {("cpu-smoke.llama3/1x128", d) for d in ("fwd", "bwd")}
    assert compared("--grid", "cpu-smoke", "--direction", "bwd") == {("cpu-smoke.llama3/1x128", "bwd")}
    assert len(compared("--op", "flash_attention", "--kernel", "xla")) == 3
    assert run(a, b, "--kernel", "cudnn").exit_code == 3
    assert run(a, b, "--device", "nvidia-h200").exit_code == 3
    assert run(a, b, "--op", "atention").exit_code == 2
    assert run(a, b, "--margin", "0.5").exit_code == 2


def test_packs_are_compared_by_their_medians_and_with_a_database(tmp_path):
    old = write_folder(tmp_path / "old", pack_files([row(sig(t), median_ns=100_000) for t in (1, 2, 3)]))
    rows = [
        row(sig(1), median_ns=150_000, config={"block": 32}),
        row(sig(2), median_ns=101_000),
        row(sig(3), median_ns=50_000, state="predicted"),
    ]
    new = write_zip(tmp_path / "new.atpack", pack_files(rows))
    found = json.loads(run(old, new, "--json").stdout)
    assert [(one["verdict"], one["basis"], one["reason"]) for one in found["rows"]] == [
        ("worse", "medians", ""),
        (
            "undecided",
            "medians",
            "no program of another problem is the same in both, so nothing tells how far the sweeps are apart",
        ),
        ("undecided", "", "predicted, not measured"),
    ]
    lab, pack = tmp_path / "lab.db", tmp_path / "lab.atpack"
    fill(lab)
    assert CliRunner().invoke(app, ["export", str(pack), "--db", str(lab)]).exit_code == 0
    found = json.loads(run(pack, lab, "--json").stdout)
    assert (found["a"]["kind"], found["b"]["kind"]) == ("pack", "database")
    assert {(one["verdict"], one["basis"], one["b_over_a"]) for one in found["rows"]} == {("undecided", "medians", 1.0)}
    assert [one["programs"] for one in found["shifts"]] == [2]


def test_a_pack_is_no_distance_away_from_the_database_that_it_was_exported_of(tmp_path):
    # Searches and finals of one database differ, and a pack has the times of finals.
    lab, pack = record_sweep(tmp_path / "a.db", TIMES, seed=1), tmp_path / "a.atpack"
    with Database.open(lab) as database:
        final = next(database.trials(status=Status.OK))
        searched = make_trial(final.config, [150_000] * 40, signature=final.signature, is_heuristic=True, features=3)
        database.record(begin(database), searched)
        database.rebuild_decisions()
    made = CliRunner().invoke(app, ["export", str(pack), "--db", str(lab), "--no-gate", "a test"])
    assert made.exit_code == 0, made.stderr
    for sides in ((lab, pack), (pack, lab)):
        (shift,) = json.loads(run(*sides, "--json").stdout)["shifts"]
        assert (shift["ratio"], shift["noise"]) == (1.0, 0.0)


def test_shipped_packs_are_named_by_their_names():
    result = run("nvidia-h200", "nvidia-h200", "--fail-on", "worse", "--fail-on", "changed")
    assert result.exit_code == 0, result.stderr
    assert "0 worse" not in result.stdout
    assert "undecided" in result.stdout


def test_sides_of_different_devices_have_nothing_to_compare(labs, tmp_path):
    other = record_sweep(tmp_path / "tpu.db", TIMES, seed=1, device=OTHER_DEVICE)
    result = run(labs[0], other, "--json")
    assert result.exit_code == 3
    assert "nvidia-h200" in result.stderr
    assert "tpu-v6e" in result.stderr
    assert json.loads(result.stdout)["exit_code"] == 3


def test_damaged_and_missing_sides_are_one_error_each(labs, tmp_path):
    a = labs[0]
    missing = run(a, tmp_path / "none.db")
    assert (missing.exit_code, "no pack of that name" in missing.stderr) == (3, True)
    torn = tmp_path / "torn.db"
    torn.write_bytes(a.read_bytes()[:5000])
    assert run(a, torn).exit_code == 5
    prose = tmp_path / "prose.db"
    prose.write_text("no database" * 100)
    assert run(prose, a).exit_code == 5
    broken = write_folder(tmp_path / "broken", pack_files([row(sig(1))]))
    (broken / "manifest.json").write_text("{}")
    assert run(broken, a).exit_code == 5
    (tmp_path / "empty").mkdir()
    assert run(tmp_path / "empty", a).exit_code == 5
    os.mkfifo(tmp_path / "fifo")
    assert run(tmp_path / "fifo", a).exit_code == 4
    for result in (missing, run(a, torn)):
        assert len(result.stderr.strip().splitlines()) == 1


def test_a_database_without_decisions_is_no_side(labs, tmp_path):
    from attn_tune.db import Database

    Database.open(tmp_path / "empty.db", create=True).close()
    assert run(tmp_path / "empty.db", tmp_path / "empty.db").exit_code == 3
    result = run(labs[0], tmp_path / "empty.db")
    assert (result.exit_code, "no decision that was asked for" in result.stderr) == (3, True)
