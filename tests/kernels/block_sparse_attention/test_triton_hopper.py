"""The forward for Hopper, as far as it goes without one: refusals, the tiles that it walks and masks, and its build."""

import dataclasses
import functools
import json
import types
from pathlib import Path

import jax
import numpy as np
import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.block_sparse_attention.triton import SPEC as TRITON
from attn_tune.kernels.block_sparse_attention.triton_hopper import SPEC
from attn_tune.kernels.block_sparse_attention.triton_hopper.forward import facts_of, launch_of
from attn_tune.kernels.lang.gluon.attention import tiles
from attn_tune.kernels.lang.triton.device.ranges import key_ranges
from attn_tune.ops.block_sparse_attention.features import coarser, samples
from attn_tune.ops.block_sparse_attention.inputs import make_inputs
from attn_tune.ops.block_sparse_attention.op import OP
from attn_tune.ops.block_sparse_attention.problem import Problem
from attn_tune.schema.device import Device
from tests.kernels.scripts import built

H200 = device_from_kind("nvidia-h200")
SEARCH = SPEC.searches["fwd"]
RESULTS = Path(__file__).parents[3] / "benchmarks/results/h200"
LONG = Problem(
    batch=1, q_len=8192, kv_len=8192, num_q_heads=32, num_kv_heads=8, head_dim=128, v_head_dim=128, scale=0.1
)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": "float32"}, "16-bit"),
        ({"head_dim": 256, "v_head_dim": 256}, "none of 64, 128"),
        ({"v_head_dim": 64}, "differ"),
        ({"mask_block_q": 64}, "below the 128 rows"),
        ({"mask_block_k": 16}, "below 32"),
    ],
)
def test_a_problem_that_listed_tiles_on_hopper_cannot_do_has_a_reason(change, words):
    assert words in SPEC.unsupported(dataclasses.replace(LONG, **change), "fwd", H200)
    assert SPEC.unsupported(LONG, "fwd", H200) is None
    ampere = Device(platform="cuda", family="sm_80", variant="nvidia-a100")
    assert "sm_80" in SPEC.unsupported(LONG, "fwd", ampere)


@pytest.mark.parametrize("change", [{}, {"head_dim": 64, "v_head_dim": 64}, {"mask_block_k": 32, "soft_cap": 2.0}])
def test_untuned_and_adapted_configs_of_listed_tiles_are_feasible(change):
    problem = dataclasses.replace(LONG, **change)
    smaller = dataclasses.replace(problem, num_q_heads=8, q_len=100, kv_len=300, mask_block_k=32)
    candidates = SEARCH.candidates[""](problem, H200)
    assert len(candidates) > 2
    for config in candidates:
        assert SEARCH.infeasible(problem, H200, config) is None
        assert SEARCH.infeasible(smaller, H200, SEARCH.adapt(problem, smaller, H200, config)) is None


def test_listed_tiles_on_hopper_go_first_where_recorded_races_say_so():
    rows = json.loads((RESULTS / "block_sparse.json").read_text())["rows"]
    assert len(rows) == 6
    for row in rows:
        problem = OP.from_signature(OP.parse_signature(row["signature"]))
        assert row["us"]["triton_hopper untuned"] < row["us"]["untuned"]
        assert SPEC.priority_for(problem, "fwd", H200) > TRITON.priority_for(problem, "fwd", H200)
    one_query = dataclasses.replace(LONG, q_len=1)
    assert SPEC.priority_for(one_query, "fwd", H200) < TRITON.priority_for(one_query, "fwd", H200)


def test_a_tile_longer_than_the_masks_block_is_infeasible():
    small = dataclasses.replace(LONG, mask_block_k=64)
    assert "no part" in SEARCH.infeasible(small, H200, SEARCH.heuristic(LONG, H200))


@pytest.mark.parametrize("name", ["edges_causal", "window", "segments_causal", "edges", "lengths", "lengths_causal"])
def test_the_tiles_of_a_list_hold_every_visible_pair_and_those_with_a_hidden_pair_are_masked(monkeypatch, name):
    tiny = samples() | {"lengths_causal": dataclasses.replace(samples()["lengths"], causal=True)}
    problem = next(p for p in coarser(tiny[name]) if not SPEC.unsupported(p, "fwd", H200))
    operands = jax.jit(functools.partial(make_inputs, problem, "fwd"))(1)
    config = SEARCH.heuristic(problem, H200)
    static, plan, _, lists = launch_of(problem, config, operands)
    facts, walked = np.asarray(facts_of(lists, static)), np.asarray(lists.tiles)
    counted = np.full(problem.batch, problem.kv_len) if operands.kv_lengths is None else np.asarray(operands.kv_lengths)
    ranges = key_ranges(operands.q_segments, operands.kv_segments, static)
    seen = _visible(problem, operands)
    scalars = types.SimpleNamespace(where=lambda condition, a, b: a if condition else b, minimum=min, maximum=max)
    monkeypatch.setattr(tiles, "gl", scalars)
    monkeypatch.setattr(tiles, "place_of", lambda tile, static: (tile, 0, 0))
    block_q, block_k = static.block_q, static.block_k
    padded = np.zeros((*seen.shape[:3], (static.kv_blocks + 1) * block_k), bool)
    padded[..., : problem.kv_len] = seen
    for batch, head in np.ndindex(*seen.shape[:2]):
        rows = facts[min(batch, len(facts) - 1), min(head, facts.shape[1] - 1)]
        assert sorted(rows[:, 0]) == list(range(static.q_blocks))
        assert (np.diff(rows[:, 1]) <= 0).all()
        for block, count, first, _ in rows.tolist():
            own = walked[min(batch, len(walked) - 1), min(head, walked.shape[1] - 1), block]
            order = own[:count][::-1].tolist() or [static.kv_blocks]
            assert order[0] == first
            stored = (0, 0, 0, 0, 0) if ranges is None else map(int, ranges[batch, block])
            info = tiles.tile_info_of.fn(tiles.StoredInfo(block, *stored, int(counted[batch])), plan, static)
            pairs = padded[batch, head, block * block_q : (block + 1) * block_q]
            pairs = pairs.reshape(len(pairs), -1, block_k)
            assert set(np.flatnonzero(pairs.any((0, 2)))) <= set(order)
            for step, tile in enumerate(order):
                edges = plan.other_keys if step else plan.last_keys
                is_masked = edges == "all" or (edges == "some" and not info.full_begin <= tile < info.full_end)
                is_masked |= static.has_segments and not info.same_begin <= tile < info.same_end
                assert is_masked or pairs[:, tile].all(), (batch, head, block, tile)
                # Values behind the length, which may be no numbers, are zeroed where edges are asked for.
                is_zeroed = plan.has_lengths and edges != "none" and info.length < (tile + 1) * block_k
                assert is_zeroed or counted[batch] >= min((tile + 1) * block_k, problem.kv_len)


def _visible(problem, operands):
    """``[B, N, T, S]``: the pairs that mask, causality, window and segments leave."""
    p = problem
    rows, columns = np.arange(p.q_len)[:, None] + p.offset, np.arange(p.kv_len)[None]
    left, right = p.bounds
    spread = np.asarray(operands.block_mask).repeat(p.mask_block_q, 2).repeat(p.mask_block_k, 3)
    seen = np.broadcast_to(spread[:, :, : p.q_len, : p.kv_len], (p.batch, p.num_q_heads, p.q_len, p.kv_len))
    if right is not None:
        seen = seen & (columns <= rows + right)
    if left is not None:
        seen = seen & (columns >= rows - left)
    if p.has_segments:
        ids = np.asarray(operands.q_segments), np.asarray(operands.kv_segments)
        seen = seen & (ids[0][:, None, :, None] == ids[1][:, None, None, :])
    return seen


@pytest.mark.slow
def test_the_build_of_listed_tiles_on_hopper_spills_nothing_and_needs_the_shared_memory_that_is_counted():
    (build,) = built("tests.kernels.block_sparse_attention.hopper_builds", "h128")
    assert build["spills"] == 0, build
    assert build["shared"] <= min(232448, build["counted"] + 512), build
    assert build["products"] > 0, build
    assert build["copies"] > 0, build
