"""The TPU kernels of decoding: interpreted against numpy, the pages they are given, and what they refuse."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.lang.pallas_tpu.ragged.config import Config as RaggedConfig
from attn_tune.kernels.paged_decode.pallas_tpu_paged import SPEC as PAGED
from attn_tune.kernels.paged_decode.pallas_tpu_paged.config import Config
from attn_tune.kernels.paged_decode.pallas_tpu_paged.pages import pages_of
from attn_tune.kernels.paged_decode.pallas_tpu_ragged import SPEC as RAGGED
from attn_tune.ops.contract import load
from attn_tune.ops.paged_decode.inputs import make_inputs
from attn_tune.ops.paged_decode.problem import Problem
from attn_tune.schema.errors import UnsupportedError
from tests.kernels.paged_decode.dense_numpy import assert_right
from tests.kernels.tpu_interpreted import run, run_discharged

TARGETS = tuple(device_from_kind(f"tpu-{name}") for name in ("v4", "v5e", "v5p", "v6e", "v7x"))
V5P, V6E = TARGETS[2], TARGETS[3]
TINY = Problem(
    batch=6, q_len=1, kv_len=77, num_q_heads=4, num_kv_heads=2, head_dim=128, v_head_dim=128, page_size=8,
    layout="head_first", scale=128**-0.5, at_edges=True,
)  # fmt: skip
LLAMA = dataclasses.replace(TINY, batch=32, kv_len=4096, num_q_heads=32, num_kv_heads=8, page_size=64, at_edges=False)
LLAMA_RAGGED = dataclasses.replace(LLAMA, layout="interleaved")


def inputs_of(problem):
    return make_inputs(problem, "fwd", 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "inline"),
    [
        ({"soft_cap": 2.0}, False),
        ({"q_len": 3, "window": 19, "has_sinks": True, "kv_dtype": "float8_e4m3fn", "kv_scale": "head"}, True),
    ],
)
def test_whole_pages_and_edges_together_are_right(changes, inline):
    problem = dataclasses.replace(TINY, **changes)
    operands = inputs_of(problem)
    config = Config(pages_per_compute_block=2, inline_seq_dim=inline)
    assert PAGED.unsupported(problem, "fwd", V6E) is None
    assert PAGED.searches["fwd"].infeasible(problem, V6E, config) is None
    assert_right(problem, operands, run(PAGED, "fwd", problem, config, operands))


@pytest.mark.slow
def test_decoding_is_right_in_the_ragged_kernel(monkeypatch):
    problem = dataclasses.replace(
        TINY, layout="interleaved", q_len=2, window=11, has_sinks=True, kv_dtype="int8", kv_scale="tensor"
    )
    operands = inputs_of(problem)
    config = RaggedConfig(num_kv_pages_per_block=2, num_queries_per_block=8)
    assert RAGGED.unsupported(problem, "fwd", V6E) is None
    assert_right(problem, operands, run_discharged(RAGGED, problem, config, operands, monkeypatch))


@pytest.mark.parametrize("window", [None, 0, 2, 7, 30])
@pytest.mark.parametrize(("q_len", "page_size"), [(1, 1), (1, 4), (3, 1), (3, 4), (8, 5)])
def test_each_visible_token_is_in_a_whole_page_of_all_queries_or_at_an_edge(q_len, page_size, window):
    lengths = np.arange(43)
    table = np.arange(lengths.size * 43).reshape(lengths.size, 43)
    pages = pages_of(
        jnp.asarray(table), jnp.asarray(lengths), q_len=q_len, page_size=page_size, window=window,
        num_pages=table.size, multiple=2,
    )  # fmt: skip
    assert pages.table.shape[1] % 2 == 0
    for row, length in enumerate(lengths):
        position = length - q_len + np.arange(q_len)
        seen = [set(range(0 if window is None else max(0, p - window), p + 1)) for p in position]
        numbers = np.asarray(pages.table)[row, : int(pages.counts[row])] - row * 43
        whole = {int(n) * page_size + slot for n in numbers for slot in range(page_size)}
        edge = np.asarray(pages.token)[row][np.asarray(pages.is_edge)[row]].tolist()
        assert all(whole <= tokens for tokens in seen)
        assert len(edge) == len(set(edge))
        assert not whole & set(edge)
        assert whole | set(edge) == set().union(*seen)
        # What fills up the table is the first page again, which a query sees.
        assert set(np.asarray(pages.table)[row].tolist()) - {row * 43 + n for n in numbers} <= (
            set() if numbers.size else set(range(table.size))
        )


@pytest.mark.parametrize("spec", [PAGED, RAGGED], ids=lambda spec: spec.name)
@pytest.mark.parametrize("device", TARGETS, ids=str)
def test_the_untuned_config_comes_first_among_distinct_feasible_ones(spec, device):
    search, problem = spec.searches["fwd"], LLAMA if spec is PAGED else LLAMA_RAGGED
    assert spec.unsupported(problem, "fwd", device) is None
    found = search.candidates[""](problem, device)
    assert found[0] == search.heuristic(problem, device)
    assert len(set(found)) == len(found) > 10
    assert {search.infeasible(problem, device, config) for config in found} == {None}
    short = dataclasses.replace(problem, kv_len=100)
    for config in found:
        assert search.infeasible(short, device, search.adapt(problem, short, device, config)) is None


def test_both_cores_are_tried_where_there_are_two():
    search = PAGED.searches["fwd"]
    assert {c.megacore_mode for c in search.candidates[""](LLAMA, V5P)} == {None, "kv_head", "batch"}
    assert {c.megacore_mode for c in search.candidates[""](LLAMA, V6E)} == {None}
    shared = Config(pages_per_compute_block=4, megacore_mode="batch")
    assert "two cores" in search.infeasible(LLAMA, V6E, shared)
    assert "b=3" in search.infeasible(dataclasses.replace(LLAMA, batch=3), V5P, shared)


@pytest.mark.parametrize("spec", [PAGED, RAGGED], ids=lambda spec: spec.name)
def test_a_table_that_scalar_memory_cannot_hold_is_refused_with_the_numbers(spec):
    problem = LLAMA if spec is PAGED else LLAMA_RAGGED
    long = dataclasses.replace(problem, batch=128, kv_len=2**17)
    for device in TARGETS:
        assert "scalar memory holds 1016 KiB" in spec.unsupported(long, "fwd", device)
        assert "1024 KiB of page table" in spec.unsupported(long, "fwd", device)
    assert spec.unsupported(dataclasses.replace(long, batch=120), "fwd", V6E) is None
    if spec is PAGED:
        # Of a window only its own pages are in the table.
        assert spec.unsupported(dataclasses.replace(long, window=4096), "fwd", V6E) is None


def test_one_long_sequence_has_a_table_of_one_row():
    # Compiled for v4, v5e and 7x: one, two and three sequences, the last of 64000 pages.
    for batch, length, fits in ((1, 2**20, True), (2, 2**20, True), (3, 1_024_000, True), (5, 2**19, False)):
        long = dataclasses.replace(LLAMA_RAGGED, batch=batch, kv_len=length, page_size=16)
        assert (RAGGED.unsupported(long, "fwd", V6E) is None) == fits


@pytest.mark.parametrize("spec", [PAGED, RAGGED], ids=lambda spec: spec.name)
def test_a_table_that_is_wider_than_the_problem_tells_is_refused_where_it_is_traced(spec):
    problem = dataclasses.replace(TINY, batch=256, layout="interleaved" if spec is RAGGED else "head_first")
    search, operands = spec.searches["fwd"], jax.eval_shape(lambda: make_inputs(problem, "fwd", 0))
    call, config = load(search.call), search.heuristic(problem, V6E)
    wide = operands._replace(page_table=jax.ShapeDtypeStruct((256, 1024), jnp.int32))
    with pytest.raises(UnsupportedError, match=r"not 1024 KiB of page table.*narrower page_table"):
        jax.eval_shape(lambda x: call(problem, config, x), wide)


@pytest.mark.parametrize(
    ("spec", "changes", "word"),
    [
        (PAGED, {"layout": "nhd"}, "layout head_first, not nhd"),
        (PAGED, {"page_size": 0}, "contiguous"),
        (PAGED, {"dtype": "float16"}, "float16"),
        (PAGED, {"dtype": "float32"}, "float32"),
        (PAGED, {"kv_dtype": "int8", "kv_scale": "token"}, "scale of each element"),
        (PAGED, {"head_dim": 64, "v_head_dim": 64}, "h=64"),
        (PAGED, {"v_head_dim": 256}, "one width"),
        (RAGGED, {"layout": "interleaved", "kv_dtype": "int8", "kv_scale": "head"}, "one scale"),
        (RAGGED, {"layout": "interleaved", "head_dim": 256, "v_head_dim": 256}, "rows of 128 lanes, not of h=256"),
        (RAGGED, {"layout": "interleaved", "num_kv_heads": 3, "num_q_heads": 3}, "cannot tile 6 heads"),
        (
            RAGGED,
            {"layout": "interleaved", "dtype": "float32", "num_kv_heads": 8, "num_q_heads": 8},
            "takes 4 of 8 query heads at a time, and Mosaic 8 at a time",
        ),
    ],
)
def test_an_unsupported_problem_has_its_reason(spec, changes, word):
    assert word in spec.unsupported(dataclasses.replace(TINY, **changes), "fwd", V6E)
    assert "not on cuda" in spec.unsupported(TINY, "fwd", device_from_kind("sm_90"))
