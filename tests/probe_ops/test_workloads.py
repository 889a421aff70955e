"""The option ``--workload``: the same problems with another profile of the data."""

import json
import threading

import pytest

from attn_tune.commands.sweeps.database_sweep import SweepRequest, run_sweep
from attn_tune.kernels.registry import get_kernel
from attn_tune.packs.reader import read_pack
from attn_tune.tuner.plan.grid import load_grid
from tests.cli.fakes import FakeExecutor
from tests.probe_ops.test_grids_of_axes import PAGED

TEXT = "probe_paged/v1 b=3 s=64 n=2 h=16 page=8 dtype=float32"
UNKNOWN = "unknown workload 'ones'; those of probe_paged are eq, uni, exp, one"


@pytest.fixture
def grid(tmp_path):
    path = tmp_path / "paged.toml"
    path.write_text(PAGED)
    return path


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Two workloads of one problem, both decided."""
    path = tmp_path_factory.mktemp("lab") / "lab.db"
    points = [load_grid(text).points[0] for text in (TEXT, f"{TEXT} workload=uni")]
    request = SweepRequest(
        points=points,
        kernels=(get_kernel("probe_paged/plain"),),
        directions=("step",),
        database=path,
    )
    run_sweep(request, FakeExecutor(), watch=lambda event: None, stop=threading.Event())
    return path


def test_a_grid_is_taken_with_the_workloads_instead_of_its_own(command, grid):
    listed = json.loads(command("grids", grid, "--workload", "uni,eq", "--json").stdout)["points"]
    assert [(row["point"], "workload=uni" in row["signature"]) for row in listed] == [
        ("paged/3x64/uni", True),
        ("paged/3x64/eq", False),
        ("paged.short/uni", True),
        ("paged.short/eq", False),
    ]
    words = ("--grid", grid, "--workload", "exp", "--point", "3x64", "--device", "cpu", "--json")
    planned = json.loads(command("plan", *words).stdout)
    assert {row["point"] for row in planned["kernels"]} == {"paged/3x64/exp"}


def test_a_sweep_of_a_signature_takes_the_workload(command, tmp_path):
    words = ("--grid", TEXT, "--workload", "one", "--db", tmp_path / "lab.db", "--dry-run")
    planned = json.loads(command("sweep", *words, "--json").stdout)
    assert {row["point"] for row in planned["kernels"]} == {f"{TEXT} workload=one"}


def test_points_of_ops_without_the_workload_are_left_out(command, grid):
    words = ("--grid", grid, "--grid", "cpu-smoke", "--workload", "one", "--device", "cpu")
    planned = json.loads(command("plan", *words, "--json").stdout)
    assert {row["kernel"].partition("/")[0] for row in planned["kernels"]} == {"probe_paged"}


def test_commands_of_one_problem_take_the_workload(command, grid, lab):
    own = ("paged/3x64/eq", "--grid", grid, "--workload")
    best = json.loads(command("best", *own, "uni", "--db", lab, "--json").stdout)["decisions"]
    assert {row["signature"] for row in best} == {f"{TEXT} workload=uni"}
    shown = json.loads(command("explain", *own, "one", "--device", "cpu", "--json").stdout)
    assert shown["step"]["signature"] == f"{TEXT} workload=one"
    assert "paged/3x64/one on" in command("kernels", *own, "one", "--device", "cpu").stdout


@pytest.mark.parametrize(("word", "signature"), [("eq", TEXT), ("uni", f"{TEXT} workload=uni")])
def test_stored_rows_are_narrowed_by_workload(command, lab, tmp_path, word, signature):
    words = ("--db", lab, "--workload", word)
    report = json.loads(command("report", *words, "--json").stdout)
    assert {row["signature"] for row in report["summary"]} == {signature}
    assert [row["point"] for row in report["coverage"]] == [signature]
    command("export", tmp_path / "one.atpack", *words, "--no-gate", "no real device")
    assert {row.signature for row in read_pack(tmp_path / "one.atpack").rows} == {signature}


def test_no_stored_problem_of_a_workload_is_no_data(command, lab):
    refused = command("report", "--db", lab, "--workload", "exp", fails=True)
    assert (refused.exit_code, refused.stdout) == (3, "")


def test_an_unknown_workload_is_one_error_that_names_those_of_the_op(command, grid, lab, tmp_path):
    point = ("paged/3x64/eq", "--grid", grid)
    for words in (
        ("plan", "--grid", grid),
        ("sweep", "--grid", TEXT, "--db", tmp_path / "none.db"),
        ("validate", "--grid", grid),
        ("report", "--db", lab),
        ("export", tmp_path / "p.atpack", "--db", lab),
        ("best", *point, "--db", lab),
        ("explain", *point, "--device", "cpu"),
        ("kernels", *point, "--device", "cpu"),
    ):
        refused = command(*words, "--workload", "ones", fails=True)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert refused.stderr == f"error: {UNKNOWN}\n"


def test_an_op_without_workloads_says_so(command):
    refused = command("plan", "--grid", "cpu-smoke", "--workload", "uni", fails=True)
    assert refused.exit_code == 2
    assert "unknown workload 'uni'; flash_attention has none" in refused.stderr


def test_kernels_without_a_point_shows_examples_with_the_workload(command):
    refused = command("kernels", "--workload", "even", "--device", "cpu", fails=True)
    assert (refused.exit_code, "unknown workload 'even'" in refused.stderr) == (2, True)


def test_the_workload_needs_something_to_choose_among(command):
    for words in (("validate",), ("grids",)):
        refused = command(*words, "--workload", "uni", fails=True)
        assert (refused.exit_code, "grid" in refused.stderr) == (2, True)
