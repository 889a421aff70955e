"""Declarations of the fused backward and the split forward: candidates, untuned choices, limits, uses."""

import csv
import dataclasses
from pathlib import Path

import pytest

from attn_tune.kernels.flash_attention.costs import units
from attn_tune.kernels.flash_attention.triton_fused import SPEC as FUSED
from attn_tune.kernels.flash_attention.triton_fused.config import BackwardConfig
from attn_tune.kernels.flash_attention.triton_fused.limits import (
    accumulators,
    shared_bytes_at_most as fused_bytes_at_most,
)
from attn_tune.kernels.flash_attention.triton_split import SPEC as SPLIT
from attn_tune.kernels.flash_attention.triton_split.config import MOST_SPLITS, ForwardConfig
from attn_tune.kernels.flash_attention.triton_split.limits import packed_rows
from attn_tune.kernels.lang.triton.limits import MAX_SHARED_BYTES
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema import Device, UsageError
from attn_tune.tuner.plan.grid import load_grid
from tests.ops.cases import CUDA, SHORT, TILED as PROBLEMS, cuda as device, flash as problem

H200 = device(units=132)
# Consumer GPUs, whose blocks have 99 KB of shared memory.
SMALL = (86, 89, 120)
FUSED_CELLS = [
    pytest.param(p, d, id=f"{name}-{d.family}")
    for name, p in PROBLEMS.items()
    for d in CUDA
    if not FUSED.unsupported(p, "bwd", d)
]


@pytest.mark.parametrize(("p", "d"), FUSED_CELLS)
def test_the_untuned_fused_tile_fits_with_its_share_of_dq(p, d):
    tile = FUSED.searches["bwd"].heuristic(p, d)
    assert fused_bytes_at_most(p, d, tile) <= MAX_SHARED_BYTES[d.compute_capability]


@pytest.mark.parametrize("capability", SMALL)
def test_the_fused_backward_refuses_where_the_smallest_tile_does_not_fit(capability):
    # 16x16 at 4 or 8 warps compiles to 114,816 bytes on sm_89.
    reason = FUSED.unsupported(PROBLEMS["float32-h256"], "bwd", device(capability))
    assert "float32 at head_dim=256" in str(reason)
    assert "101376" in str(reason)


def test_the_share_of_dq_counts_as_registers():
    tile = {"block_q": 32, "num_warps": 4, "num_stages": 2, "transposed_dq": True}
    config = BackwardConfig(block_k=128, **tile)
    assert accumulators(PROBLEMS["plain"], config) == 256 + 32 + 32
    reason = FUSED.searches["bwd"].infeasible(PROBLEMS["plain"], device(), config)
    assert "320 registers" in str(reason)
    assert FUSED.searches["bwd"].infeasible(PROBLEMS["plain"], device(100), config) is None


def test_dq_is_tried_both_ways_only_where_both_may_win():
    def ways(capability, **flags):
        found = FUSED.searches["bwd"].candidates[""](problem(**flags), device(capability))
        return {(c.transposed_dq, c.block_q >= 64) for c in found}

    assert ways(90) == {(True, True), (True, False), (False, True)}
    assert ways(80) == {(False, True), (False, False)}
    assert ways(90, dtype="float32") == {(False, True), (False, False)}
    assert {transposed for transposed, _ in ways(100)} == {True, False}


@pytest.mark.parametrize(
    ("config", "knob", "value"),
    [
        (BackwardConfig, "transposed_dq", 1),
        (ForwardConfig, "num_splits", 3),
        (ForwardConfig, "num_splits", 2 * MOST_SPLITS),
        (ForwardConfig, "num_splits", 0),
        (ForwardConfig, "block_q", 48),
    ],
)
def test_impossible_knobs_are_named(config, knob, value):
    own = {"transposed_dq": True} if config is BackwardConfig else {"num_splits": 1}
    good = {"block_q": 64, "block_k": 64, "num_warps": 4, "num_stages": 2} | own
    with pytest.raises(UsageError, match=rf"{knob} must be .* got {value}"):
        config(**(good | {knob: value}))


@pytest.mark.parametrize(
    ("p", "d", "words"),
    [
        (problem(T=4096), H200, "2048 tiles of 64 rows"),
        (problem(T=512, S=8192, N=32, B=4), H200, "one head's"),
        (problem(T=64, S=8192, N=64, K=8, B=8), H200, "more than one tile of 128"),
        (PROBLEMS["plain"], device(75), "8.0"),
        (problem(H=512, T=16), H200, "head_dim=512"),
    ],
)
def test_triton_split_refuses_where_splitting_gains_nothing(p, d, words):
    assert words in str(SPLIT.unsupported(p, "fwd", d))


def test_packing_is_of_use_however_many_tiles_there_are():
    assert SPLIT.unsupported(problem(T=4, S=8192, N=64, K=8, B=64), "fwd", H200) is None


def test_few_long_rows_are_split_on_a_large_device_only():
    p = problem(T=512, S=8192, N=8, B=2)
    assert SPLIT.unsupported(p, "fwd", H200) is None
    assert "busy" in str(SPLIT.unsupported(p, "fwd", device(units=16)))


@pytest.mark.parametrize("name", SHORT)
def test_splits_are_as_many_as_there_is_work_for(name):
    p = SHORT[name]
    _, *found = SPLIT.searches["fwd"].candidates[""](p, H200)
    most = max(c.num_splits for c in found)
    for c in found:
        programs = p.batch * p.num_kv_heads * -(-packed_rows(p) // c.block_q)
        assert programs * c.num_splits <= 8 * units(H200) or c.num_splits == 1
        # Half-empty devices only where the keys give no more parts.
        assert programs * c.num_splits >= units(H200) or c.num_splits == most
        assert c.num_splits == 1 or min(p.kv_len, p.q_len + (p.bounds[0] or p.kv_len)) // c.num_splits >= 64


def test_a_group_is_one_tile_or_two():
    p = SHORT["plain"]
    assert packed_rows(p) == 256
    assert {c.block_q for c in SPLIT.searches["fwd"].candidates[""](p, H200)} == {64, 128}
    one = dataclasses.replace(p, q_len=1)
    assert {c.block_q for c in SPLIT.searches["fwd"].candidates[""](one, H200)} == {16}


def test_triton_fused_has_no_forward_and_triton_split_no_backward():
    assert set(FUSED.searches) == {"bwd"}
    assert set(SPLIT.searches) == {"fwd"}
    assert FUSED.needs_leave("bwd")
    assert not FUSED.needs_leave("fwd")
    assert not SPLIT.needs_leave("fwd")
    tpu = Device(platform="tpu", family="v6e", variant="tpu-v6e")
    for spec, direction in ((FUSED, "bwd"), (SPLIT, "fwd")):
        assert "NVIDIA" in str(spec.unsupported(PROBLEMS["plain"], direction, tpu))


def test_untuned_splits_are_near_the_fastest_that_was_measured():
    recorded = Path(__file__).parents[3] / "benchmarks/results/h200/decode_splits.csv"
    times: dict[str, dict[tuple[str, str, str], float]] = {}
    for row in csv.DictReader(recorded.open()):
        config = (row["kernel"], row["block_k"], row["num_splits"])
        times.setdefault(row["point"], {})[config] = float(row["split_us"]) + float(row["combine_us"])
    points = {point.name: point.signature for point in load_grid("decode").points}
    assert times.keys() == points.keys()
    for name, signature in points.items():
        untuned = SPLIT.searches["fwd"].heuristic(Problem.from_signature(signature), H200)
        chosen = ("triton_split", str(untuned.block_k), str(untuned.num_splits))
        assert times[name][chosen] <= 1.03 * min(times[name].values()), (name, chosen)
