"""Grids of missed lookups: counts over processes, one device a grid, and misses that cannot be tuned."""

import pytest

from attn_tune.schema import NoDataError, UsageError
from attn_tune.tuner.discover.miss_grid import grid_of_misses, read_spool
from tests.runtime.test_miss_spool import line


def spool_of(folder, *lines):
    from attn_tune.runtime.miss_spool import append

    for one in lines:
        assert append(folder, one)
    return read_spool(folder)


def test_a_miss_counts_the_largest_number_of_each_process(tmp_path):
    spool = spool_of(
        tmp_path,
        line(1, count=1),
        line(1, count=4),
        line(1, count=2),
        line(1, count=8, process="2-bb", nearest="", time=9),
        line(1, direction="bwd"),
    )
    first, second = spool.rows
    assert (first.count, first.processes, first.first, first.last) == (12, 2, 1, 9)
    assert first.nearest == "no pack holds rows"
    assert second.direction == "bwd"
    grid, refused = grid_of_misses(spool, "missed")
    (point,) = grid.points
    assert (point.directions, point.calls, refused) == (("fwd", "bwd"), 13, ())


def test_misses_of_several_devices_are_not_mixed(tmp_path):
    spool = spool_of(tmp_path, line(1), line(2, device="nvidia-h200"))
    with pytest.raises(UsageError, match=r"cpu-x86_64, nvidia-h200.*--missed-on"):
        grid_of_misses(spool, "missed")
    grid, _ = grid_of_misses(spool, "missed", device="nvidia-h200")
    assert [p.signature.values["left"] for p in grid.points] == [2]
    with pytest.raises(UsageError, match="nvidia-h200"):
        grid_of_misses(spool, "missed", device="nvidia-h20")


def test_misses_that_cannot_be_tuned_are_returned_with_a_reason(tmp_path):
    spool = spool_of(tmp_path, line(1), line(2, op="of_another_version"), line(3, direction="up"))
    grid, refused = grid_of_misses(spool, "missed")
    assert len(grid.points) == 1
    assert len(refused) == 2
    with pytest.raises(NoDataError, match="ATTN_TUNE_ON_MISS=record"):
        grid_of_misses(read_spool(tmp_path / "empty"), "missed")
