"""Tiles of eight rows of the Triton kernel: where they are refused, tried, or the untuned choice, and their rows."""

import dataclasses

import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.paged_decode._triton.config import NARROW
from attn_tune.kernels.paged_decode.triton import SPEC
from attn_tune.ops.paged_decode.problem import Problem

H200 = device_from_kind("nvidia-h200")
SEARCH = SPEC.searches["fwd"]
CODES = Problem(
    batch=4,
    q_len=1,
    kv_len=4096,
    num_q_heads=32,
    num_kv_heads=8,
    head_dim=128,
    v_head_dim=128,
    page_size=64,
    kv_dtype="float8_e4m3fn",
    kv_scale="tensor",
)


def tried_rows(problem):
    return {config.block_q for config in SEARCH.candidates[""](problem, H200)}


def test_sweeps_try_narrow_tiles_of_few_rows_only():
    assert tried_rows(CODES) == {NARROW, 16}
    assert NARROW not in tried_rows(dataclasses.replace(CODES, q_len=4))


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({}, NARROW),
        ({"batch": 64, "kv_dtype": "int8"}, NARROW),
        ({"workload": "exp", "q_len": 2}, NARROW),
        ({"q_len": 3}, 16),
        ({"batch": 1, "kv_len": 1024}, 16),
        ({"batch": 8, "kv_dtype": "same", "kv_scale": "none"}, 16),
        ({"page_size": 0}, 16),
    ],
)
def test_untuned_tiles_of_codes_are_narrow_where_that_was_faster(changes, rows):
    assert SEARCH.heuristic(dataclasses.replace(CODES, **changes), H200).block_q == rows


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({}, NARROW),
        ({"kv_len": 2048}, NARROW),
        ({"batch": 2}, NARROW),
        ({"batch": 1, "kv_len": 1024}, 16),
        ({"q_len": 4, "kv_len": 2048}, 16),
        ({"page_size": 0, "kv_len": 2048}, 16),
    ],
)
def test_short_sequences_of_few_are_shared_by_clusters(changes, rows):
    """Those of 16 MB to 64 MB by eight programs of eight rows each, measured on an H200."""
    config = SEARCH.heuristic(dataclasses.replace(CODES, kv_dtype="same", kv_scale="none", **changes), H200)
    assert config.block_q == rows
    assert config.cluster == 8


@pytest.mark.parametrize(
    "changes",
    [{"batch": 8}, {"kv_len": 8192}, {"workload": "exp"}, {"dtype": "float32"}, {"batch": 1, "num_kv_heads": 4}],
)
def test_other_sequences_are_not_shared_by_clusters(changes):
    plain = dataclasses.replace(CODES, kv_dtype="same", kv_scale="none", **changes)
    assert SEARCH.heuristic(plain, H200).cluster is None


@pytest.mark.parametrize(
    ("batch", "kv_len", "knobs"), [(64, 2048, (2, 2)), (128, 2048, (2, 2)), (32, 4096, (4, 5)), (256, 1024, (4, 5))]
)
def test_many_programs_share_a_multiprocessor_where_that_was_faster(batch, kv_len, knobs):
    many = dataclasses.replace(CODES, kv_dtype="same", kv_scale="none", batch=batch, kv_len=kv_len)
    config = SEARCH.heuristic(many, H200)
    assert (config.num_warps, config.num_stages) == knobs
    assert config.num_programs is None


def test_programs_share_a_multiprocessor_where_it_was_measured_alone():
    many = dataclasses.replace(CODES, kv_dtype="same", kv_scale="none", batch=64, kv_len=2048)
    older = device_from_kind("nvidia-a100-sxm4-80gb")
    assert SEARCH.heuristic(many, older).num_warps == 4
    assert SEARCH.heuristic(dataclasses.replace(many, head_dim=256, v_head_dim=256), H200).num_warps == 4


def test_a_narrow_config_of_few_rows_is_none_of_many():
    config = dataclasses.replace(SEARCH.heuristic(CODES, H200), block_q=NARROW)
    assert SEARCH.adapt(CODES, dataclasses.replace(CODES, batch=8), H200, config).block_q == NARROW
    assert SEARCH.adapt(CODES, dataclasses.replace(CODES, q_len=4), H200, config).block_q == 16


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layout": "latent", "num_kv_heads": 1, "kv_scale": "none"}, "values apart from keys"),
        ({"dtype": "float32"}, "16-bit queries"),
        ({"v_head_dim": 33}, "v=33"),
    ],
)
def test_narrow_tiles_are_refused_with_a_reason(changes, words):
    problem = dataclasses.replace(CODES, **changes)
    config = dataclasses.replace(SEARCH.heuristic(problem, H200), block_q=NARROW)
    assert words in SEARCH.infeasible(problem, H200, config)
    assert NARROW not in tried_rows(problem)
