"""Commands on an op that has one direction, beside an op that has two."""

import dataclasses
import json
import re

import pytest

from attn_tune.commands.sweeps.database_sweep import SweepRequest, say_left_out
from attn_tune.kernels import registry
from attn_tune.reports import frames
from attn_tune.runtime.active import settings
from attn_tune.schema import Signature
from attn_tune.tuner.plan.grid import load_grid
from tests.cli.fakes import DEVICE, SIGNATURE
from tests.cli.test_commands import run
from tests.ops.known import more_kernels
from tests.runtime.lookup.toy_op import TOY, Problem, kernel
from tests.runtime.packbuilder import FIELDS, OP, sig

NAME = "one_way"
TEXT = sig(64, dtype="float32").replace(OP, NAME)


class OneWayProblem(Problem):
    """A problem of the op that has one direction."""

    @property
    def signature(self):
        return Signature.build(NAME, 1, FIELDS, self)


ONE_WAY = dataclasses.replace(
    TOY,
    name=NAME,
    directions=("fwd",),
    problem=OneWayProblem,
)
FORWARD = dataclasses.replace(kernel("alpha", directions=("fwd",)), op=NAME)


@pytest.fixture(autouse=True)
def both_ops(monkeypatch, tmp_path):
    more_kernels(monkeypatch, FORWARD, ops=(ONE_WAY,))
    monkeypatch.setattr(settings, "_current", None)
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))


def test_explain_asks_for_the_directions_of_the_op():
    asked = run("explain", TEXT, "--device", "cpu", "--json")
    assert asked.exit_code == 0, asked.stderr
    assert list(json.loads(asked.stdout)) == ["fwd"]
    both = run("explain", SIGNATURE, "--device", "cpu", "--json")
    assert list(json.loads(both.stdout)) == ["fwd", "bwd"]


def test_commands_take_the_directions_that_a_point_is_for(tmp_path):
    point = "qwen3-next-linear-steps.pool"
    asked = run("explain", point, "--device", "cpu", "--json")
    assert (asked.exit_code, list(json.loads(asked.stdout))) == (0, ["fwd"])
    named = run("explain", point, "--device", "cpu", "--json", "-d", "bwd")
    assert (named.exit_code, list(json.loads(named.stdout))) == (1, ["bwd"])
    grid = ("--grid", "qwen3-next-linear-steps", "--point", "qwen3-next-linear-steps.pool")
    frozen = run("override", "freeze", tmp_path / "job.lock", *grid, "--device", "cpu", "--json")
    assert (frozen.exit_code, json.loads(frozen.stdout)["entries"]) == (0, 1)
    checked = run("validate", *grid, "-k", "gated_delta_rule/xla", "-d", "bwd")
    assert checked.exit_code == 3
    assert "the grid's points are for another one" in checked.stderr


def test_commands_take_the_directions_that_a_problem_has(tmp_path):
    pooled = "kda/v1 b=2 t=1 n=4 k=4 h=16 v=16 dtype=bfloat16 state=pool"
    asked = run("explain", pooled, "--device", "cpu", "--json")
    assert (asked.exit_code, list(json.loads(asked.stdout))) == (0, ["fwd"])
    assert run("explain", pooled, "--device", "cpu", "-d", "bwd").exit_code == 1, "one that is asked for is explained"
    planned = json.loads(run("plan", "--grid", pooled, "--json").stdout)
    assert {row["direction"] for row in planned["kernels"]} == {"fwd"}
    frozen = run("override", "freeze", "--grid", pooled, str(tmp_path / "frozen.toml"), "--device", "cpu")
    assert frozen.exit_code == 0, frozen.stderr
    table = frames.coverage([], {pooled: "pooled", pooled.replace("pool", "both"): "both"})
    assert table[["fwd", "bwd"]].values.tolist() == [[False, None], [False, False]]


def test_explain_refuses_a_direction_of_another_op():
    asked = run("explain", TEXT, "--device", "cpu", "-d", "bwd")
    assert (asked.exit_code, asked.stdout) == (2, "")
    assert "unknown direction 'bwd'; did you mean 'fwd'?" in asked.stderr


def test_freeze_writes_the_directions_of_each_op(tmp_path):
    frozen = run(
        *("override", "freeze", tmp_path / "job.lock", "--grid", TEXT, "--grid", SIGNATURE),
        *("--device", "cpu", "--json"),
    )
    assert frozen.exit_code == 0, frozen.stderr
    assert json.loads(frozen.stdout)["entries"] == 3


def test_kernels_of_an_op_without_preset_ask_for_a_point_of_it():
    listed = run("kernels", "--op", NAME, "--device", "cpu")
    assert listed.exit_code == 0, listed.stderr
    assert "no preset has a point of its op" in listed.stdout
    assert listed.stdout.startswith("Kernels on cpu")
    (row,) = json.loads(run("kernels", TEXT, "--op", NAME, "--device", "cpu", "--json").stdout)["kernels"]
    assert (row["kernel"], row["direction"], row["supported"]) == (FORWARD.id, "fwd", True)


def test_kernels_without_a_point_answer_for_every_point_of_each_op():
    words = ("kernels", "--device", "nvidia-h200", "-d", "fwd")
    rows = json.loads(run(*words, "-k", "flash_attention/xla", "-k", "triton_split", "--json").stdout)["kernels"]
    every, split = rows if rows[0]["kernel"].endswith("xla") else rows[::-1]
    assert every["points_supported"] == every["points_asked"] > 0
    assert 0 < split["points_supported"] < split["points_asked"], "it can do short queries alone"
    assert every["example"].startswith("llama3-8b/4x4k")
    # Its configs are counted at a point that it can do.
    assert split["configs"]
    assert split["example"] != every["example"]
    grid = run(*words, "-k", "flash_attention/xla", "--grid", "cpu-smoke").stdout
    assert re.search(r"(\d+) of \1 ", grid)
    assert re.search(r"points: how many a kernel takes, of \d+ of flash_attention in cpu-smoke; configs: of", grid)


def test_kernels_of_a_grid_are_those_of_its_ops_unless_others_are_asked_for():
    words = ("kernels", "--device", "cpu", "--grid", "cpu-smoke")
    brief, every = run(*words).stdout, run(*words, "--all").stdout
    assert re.search(r"\n\d+ kernels of ops without a point in cpu-smoke left out \(--all lists them\)\n", brief)
    assert "has no point of its op" not in brief
    assert "left out" not in every
    for shown in (every, run(*words, "-k", "gla/xla").stdout, run(*words, "--op", "gla").stdout):
        assert "cpu-smoke has no point of its op; give a POINT of gla" in " ".join(shown.split())
    assert "gla/xla" in run(*words, "--json").stdout


def test_kernels_of_a_point_answer_for_it_alone():
    shown = run("kernels", SIGNATURE, "--device", "cpu", "-k", "flash_attention/xla").stdout
    assert SIGNATURE in shown
    assert "points" not in shown


def test_kernels_without_a_point_show_each_op():
    rows = json.loads(run("kernels", "--device", "cpu", "--json").stdout)["kernels"]
    shown = {row["kernel"].partition("/")[0] for row in rows if row["direction"]}
    serving = {"paged_append", "paged_decode", "ragged_paged"}
    linear = {"gated_delta_rule", "gla", "kda", "linear_attention"}
    sparse = {"indexer", "native_sparse_attention", "sparse_mla"}
    dense = {"attention", "block_sparse_attention", "flash_attention", "merge_attention"}
    assert shown == {*dense, *serving, *linear, *sparse}


def test_validate_names_the_op_that_has_no_samples():
    done = run("validate", "--op", NAME)
    assert done.exit_code == 2
    assert f"error: {NAME} has no samples; choose problems with --grid" in done.stderr


def test_validate_says_that_no_sample_has_the_feature():
    done = run("validate", "--op", "attention", "--feature", "segments")
    assert done.exit_code == 2
    assert "no sample of attention has segments in its name" in done.stderr


def test_kernels_left_out_are_those_of_the_cases_alone(capsys):
    def left_out(point, *directions):
        request = SweepRequest(
            points=load_grid(point).points,
            kernels=tuple(registry.kernels().values()),
            directions=directions,
            database=None,
        )
        device = dataclasses.replace(DEVICE, platform="cuda", family="sm_90", variant="sm_90")
        say_left_out(request, device)
        return capsys.readouterr().err

    assert left_out(TEXT, "fwd", "bwd") == ""
    assert "flash_attention/" in left_out(SIGNATURE, "fwd", "bwd")
    assert left_out(SIGNATURE, "fwd") == ""
