"""Filters of the command line: a command that takes one narrows by it or refuses it; none ignores it."""

import csv
import io
import json

import pytest
from typer.testing import CliRunner

from attn_tune.cli import app, commands
from attn_tune.packs.reader import read_pack
from attn_tune.runtime.miss_spool import append
from attn_tune.schema import Environment, Signature, Status, Trial
from tests.cli.fakes import DEVICE, ENVIRONMENT, SIGNATURE, FakeExecutor, fill
from tests.runtime.test_miss_spool import line

LLAMA, LONGER = SIGNATURE, SIGNATURE.replace("t=128 s=128", "t=256 s=256")
OWN = """
summary = "a problem of one's own"
[[layer]]
op = "flash_attention"
name = "prompt"
b = 1
t = 256
s = 256
n = 4
k = 1
h = 128
v = 128
dtype = "bfloat16"
causal = 1
"""


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="attn-tune")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("ATTN_TUNE_ON_MISS", f"record:{tmp_path / 'spool'}")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A problem of a preset and one of no preset, both decided."""
    path = tmp_path_factory.mktemp("lab") / "lab.db"
    fill(path)
    fill(path, grid=LONGER)
    return path


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(OWN)
    return path


FILTERS = [
    (["--point", "llama3"], {LLAMA}),
    (["--point", "cpu-smoke.*"], {LLAMA}),
    (["--point", "t=256"], {LONGER}),
    (["--lengths", "128"], {LLAMA}),
    (["--lengths", "1x256"], {LONGER}),
    (["--lengths", "128,256"], {LLAMA, LONGER}),
    (["--lengths", "short"], {LLAMA}),
    ([], {LLAMA, LONGER}),
]


@pytest.mark.parametrize(("words", "expected"), FILTERS, ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_export_and_report_narrow_without_a_grid(lab, tmp_path, words, expected):
    done = run("export", tmp_path / "p.atpack", "--db", lab, *words)
    assert done.exit_code == 0, done.stderr
    assert {row.signature for row in read_pack(tmp_path / "p.atpack").rows} == expected
    shown = csv.DictReader(io.StringIO(run("report", "--db", lab, "-f", "csv", *words).stdout))
    assert {row["signature"] for row in shown} == expected
    (covered,) = json.loads(run("report", "--db", lab, "-s", "coverage", "--json", *words).stdout).values()
    assert len(covered) == len(expected)


@pytest.mark.parametrize("words", [["--point", "zzz"], ["--lengths", "9k"], ["--lengths", "nosuch"]])
def test_a_filter_without_a_match_is_an_error_that_names_the_stored_values(lab, tmp_path, words):
    for command in (["export", tmp_path / "p.atpack"], ["report"]):
        result = run(*command, "--db", lab, *words)
        assert result.exit_code in (2, 3), result.stdout
        assert result.stdout == ""
    if words[0] == "--point":
        assert "cpu-smoke.llama3/1x128" in result.stderr
        assert "--grid FILE" in result.stderr


@pytest.mark.parametrize(
    "words", ["--lengths=", "--lengths= ,", "--point=", "--op=", "--kernel=", "--direction=", "--workload="]
)
def test_a_filter_that_names_nothing_is_a_usage_error(tmp_path, words):
    result = run("sweep", "--grid", "cpu-smoke", "--db", tmp_path / "lab.db", words)
    assert (result.exit_code, "names nothing; name something, or leave the option out" in result.stderr) == (2, True)
    assert not (tmp_path / "lab.db").exists()


def test_a_malformed_length_is_a_usage_error(lab):
    result = run("report", "--db", lab, "--lengths", "4q")
    assert (result.exit_code, "'4q'" in result.stderr) == (2, True)


def test_names_of_a_file_of_ones_own_work_in_every_command(lab, own, tmp_path):
    db = ["--db", lab]
    best = json.loads(run("best", "mine.prompt", "--grid", own, *db, "--json").stdout)
    assert {row["signature"] for row in best["decisions"]} == {LONGER}
    assert "256" in run("explain", "mine.prompt", "--grid", own, "--device", "cpu").stdout
    assert "mine.prompt" in run("kernels", "mine.prompt", "--grid", own, "--device", "cpu").stdout
    pinned = run(
        "override", "add", "use", "flash_attention/xla", "-c", "chunk_q=64", "-c", "chunk_k=64",
        "--point", "mine.prompt", "--grid", own,
    )  # fmt: skip
    assert (pinned.exit_code, LONGER in pinned.stdout) == (0, True)
    report = run("report", *db, "--grid", own, "--point", "prompt", "--json")
    assert {row["point"] for row in json.loads(report.stdout)["coverage"]} == {"mine.prompt"}
    for words in (["explain"], ["best", *db], ["kernels"]):
        assert "--grid FILE" in run(words[0], "mine.prompt", *words[1:]).stderr
        missing = run(words[0], "mine.nosuch", *words[1:], "--grid", own)
        assert (missing.exit_code, "mine.prompt" in missing.stderr) == (2, True)


def test_grids_lists_points_of_several_grids_by_name(own):
    def points(*words):
        result = run("grids", *words, "--json")
        assert result.exit_code == 0, result.stderr
        return [row["point"] for row in json.loads(result.stdout)["points"]]

    assert points("--grid", "gemma3-27b") == points("-g", "gemma3-27b") == points("gemma3-27b")
    both = points("gemma3-27b", "--grid", own)
    assert both == points("--grid", "gemma3-27b", "--grid", own) == [*points("gemma3-27b"), "mine.prompt"]
    # A filter is a part of the name, or a pattern of all of it.
    assert points("gemma3-27b", "-g", own, "--point", "prom") == ["mine.prompt"]
    local = points("gemma3-27b", "-g", own, "--point", "*.local/4x4k", "--point", "mine*")
    assert local == ["gemma3-27b.local/4x4k", "mine.prompt"]
    assert run("grids", "-g", "gemma*").exit_code == run("plan", "-g", "gemma*").exit_code == 2
    assert run("grids", "gemma3-27b", "--point", "local/4x").exit_code == 0
    assert run("grids", "gemma3-27b", "--point", "nothing").exit_code == 2


GRIDLESS = ("plan", "sweep", "override freeze job.json")
REFUSED = [
    ["validate", "--point", "llama3"],
    ["validate", "--lengths", "4k"],
    ["validate", "--grid", "cpu-smoke", "--feature", "sinks"],
    ["grids", "--lengths", "4k"],
    ["grids", "--point", "4k"],
    ["override", "add", "use", "flash_attention/xla", "--grid", "cpu-smoke"],
    *([*name.split(), "--point", "x"] for name in GRIDLESS),
    *([*name.split(), "--lengths", "4k"] for name in GRIDLESS),
]  # fmt: skip


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_a_filter_that_cannot_be_applied_is_a_usage_error(monkeypatch, tmp_path, words):
    monkeypatch.chdir(tmp_path)
    result = run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert any(word in result.stderr for word in ("--grid", "a grid", "--target"))


@pytest.mark.parametrize("grid", [LONGER, "own", "misses"])
def test_lengths_narrow_signatures_own_layers_and_misses(own, tmp_path, grid):
    chosen = {"own": ["--grid", own], "misses": ["--from-misses"]}.get(grid, ["--grid", LONGER])
    append(tmp_path / "spool", line(1))
    sizes = {"misses": "64"}.get(grid, "256")
    for words in (
        ["plan", *chosen, "--device", "cpu"],
        ["override", "freeze", tmp_path / "l", "--overwrite", *chosen, "--device", "cpu"],
    ):
        if words[0] == "override" and grid == "misses":
            continue
        kept, dropped = run(*words, "--lengths", sizes), run(*words, "--lengths", "9k")
        assert kept.exit_code == 0, kept.stderr
        assert (dropped.exit_code, dropped.stdout) == (2, "")


def test_report_narrows_trials_by_device_too(lab):
    words = ["report", "--db", lab, "-s", "statuses", "--json"]
    assert json.loads(run(*words).stdout)["statuses"]
    assert run(*words, "--device", "nvidia-h200").exit_code == 3


def test_lab_convert_narrows_trials(lab, tmp_path):
    def signatures(*words):
        out = tmp_path / "-".join(words).replace("/", "")
        done = run("lab", "convert", out, "--to", "t4", "--db", lab, "-d", "fwd", *words)
        found = [json.loads(path.read_text())["metadata"]["attn_tune"] for path in out.glob("*.metadata.json")]
        return done.exit_code, {one["search"]["signature"] for one in found}

    assert signatures("--kernel", "xla") == (0, {LLAMA, LONGER})
    assert signatures("--lengths", "256") == (0, {LONGER})
    assert signatures("--point", "cpu-smoke.*") == (0, {LLAMA})
    assert signatures("--point", "nothing") == (3, set())
    assert signatures("--kernel", "triton") == (3, set())


def test_commands_with_filters_are_all_tested_here():
    taking = {
        " ".join(words)
        for words, command in commands()
        if any({"--point", "--lengths"} & set(p.opts) for p in command.params)
    }
    tested = {"export", "report", "validate", "grids", "plan", "sweep"}
    assert taking - {"override add"} == tested | {"override freeze", "lab compare", "lab convert"}


def foreign(kernel, text="decode/v1 b=1 pages=4"):
    """A trial of an op or a kernel that no installed package has."""
    op, _, rest = text.partition("/v1 ")
    items = tuple((n, int(v)) for n, _, v in (item.partition("=") for item in rest.split()))
    return Trial(
        kernel=kernel,
        direction="fwd",
        signature=Signature(op, 1, items),
        device=DEVICE,
        environment=Environment(jax="0.12.0", jaxlib="0.12.0"),
        config={"split": 2},
        status=Status.CRASHED,
        reason="signal 11",
        started_us=1,
    )


def test_report_shows_rows_of_what_is_not_installed(tmp_path):
    from attn_tune.db import Database

    path = tmp_path / "lab.db"
    fill(path, FakeExecutor())
    with Database.open(path) as database:
        run_id = database.begin_run(device=DEVICE, environment=ENVIRONMENT, argv=["sweep"])
        database.record(run_id, foreign("decode/splitk"))
        database.record(run_id, foreign("flash_attention/gone", LLAMA.split(" dtype")[0]))
        database.end_run(run_id, "finished")
    result = run("report", "--db", path)
    assert result.exit_code == 0, result.stderr
    assert "decode/splitk" in result.stdout
    assert result.stderr.count("decode is not installed here") == 1
    assert result.stderr.count("flash_attention/gone is not installed here") == 1
    narrowed = json.loads(run("report", "--db", path, "-k", "splitk", "-s", "failures", "--json").stdout)
    assert [row["kernel"] for row in narrowed["failures"]] == ["decode/splitk"]
