"""Grids of ops with axes and workloads of their own."""

import pytest

from attn_tune.ops.registry import get_op
from attn_tune.schema import UsageError
from attn_tune.tuner.plan.grid import grid_point, load_grid
from attn_tune.tuner.plan.grid_file import write_grid
from attn_tune.tuner.plan.lengths import has_lengths

PAGED = """
summary = "a cache in pages"
op = "probe_paged"
run = ["few"]
workloads = ["eq", "one"]

[lengths]
few = ["3x64"]
many = ["64x4k"]

[[layer]]
n = 2
h = 16
page = 8
dtype = "float32"

[[layer]]
name = "short"
b = 2
s = 16
n = 2
h = 16
page = 8
dtype = "float32"
workloads = ["uni"]
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "paged.toml"
    path.write_text(PAGED)
    return path


def test_lengths_are_the_axes_of_the_op_and_points_one_a_workload(path):
    points = {p.name: p.signature.values for p in load_grid(str(path)).points}
    assert list(points) == ["paged/3x64/eq", "paged/3x64/one", "paged.short/uni"]
    assert [(v["b"], v["s"]) for v in points.values()] == [(3, 64), (3, 64), (2, 16)]
    # The default is left out.
    assert [v.get("workload") for v in points.values()] == [None, "one", "uni"]


def test_lengths_choose_by_group_number_and_text(path):
    for words in (["many"], ["4k"], ["64x4k"]):
        found = load_grid(str(path), lengths=words).points
        assert {p.name for p in found} == {"paged/64x4k/eq", "paged/64x4k/one"}
    # 64 is a length here, and a batch there.
    assert {p.name for p in load_grid(str(path), lengths=["64"]).points} == {
        "paged/3x64/eq",
        "paged/3x64/one",
    }


def test_a_point_is_found_by_its_name(path):
    assert grid_point("paged/3x64/one", [str(path)]).signature.values["workload"] == "one"


def test_a_grid_that_is_written_reads_the_same(path, tmp_path):
    grid = load_grid(str(path))
    copy = tmp_path / "copy.toml"
    write_grid(grid, copy)
    assert [p.signature for p in load_grid(str(copy)).points] == [p.signature for p in grid.points]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"one"]', '"ones"]', "unknown workload of probe_paged 'ones'; did you mean 'one'"),
        ('"3x64"', '"3x64x64"', "lengths '3x64x64' must be BxS"),
        ("s = 16\n", "", "it gives b but not s"),
        ("page = 8", "pages = 8", "unknown key 'pages'; did you mean 'page'"),
    ],
)
def test_axes_and_words_that_the_op_lacks_are_refused(path, old, new, said):
    path.write_text(PAGED.replace(old, new))
    with pytest.raises(UsageError, match=said):
        load_grid(str(path))


def test_lengths_of_another_op_match_nothing():
    axes = get_op("probe_loss").axes
    assert has_lengths(axes, {"t": 64}, ["64"])
    assert not has_lengths(axes, {"t": 64}, ["1x64"])


def test_operations_and_bytes_are_those_of_the_workload():
    op = get_op("probe_paged")
    text = "probe_paged/v1 b=64 s=4096 n=2 h=16 page=8 dtype=float32"
    flops = [
        op.flops(op.from_signature(op.parse_signature(f"{text}{workload}")), "step")
        for workload in ("", " workload=uni", " workload=exp", " workload=one")
    ]
    assert flops == sorted(flops, reverse=True)
    assert flops[-1] < flops[0] / 8
