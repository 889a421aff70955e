"""tokamax's batched ragged paged attention in ragged calls, interpreted against numpy, and what it refuses."""

import dataclasses
import importlib.util

import jax.numpy as jnp
import numpy as np
import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.lang.pallas_tpu.batched.config import Config
from attn_tune.kernels.ragged_paged.tokamax_batched_rpa import SPEC
from attn_tune.ops.ragged_paged.inputs import make_inputs
from attn_tune.ops.ragged_paged.problem import Problem
from attn_tune.ops.ragged_paged.walk import WALK
from attn_tune.schema.config import config_to_dict
from tests.kernels.ragged_paged.dense_numpy import assert_right
from tests.kernels.tpu_interpreted import run_viewed

has_tokamax = pytest.mark.skipif(importlib.util.find_spec("tokamax") is None, reason="tokamax is not installed")

V6E = device_from_kind("tpu-v6e")
# Among its sequences are empty ones, some without queries, and some with more queries than tokens.
TINY = Problem(
    batch=9, tokens=60, kv_len=77, num_q_heads=4, num_kv_heads=2, head_dim=128, v_head_dim=128, page_size=8,
    layout="interleaved", scale=128**-0.5, at_edges=True,
)  # fmt: skip
CONFIG = Config(bq_sz=16, bq_c_sz=8, bkv_sz=16, batch_size=2, n_buffer=2)


def inputs_of(problem):
    return make_inputs(problem, "fwd", 1)


@pytest.mark.slow
@has_tokamax
@pytest.mark.parametrize(
    ("changes", "knobs"),
    [
        ({"dtype": "float32", "head_dim": 256, "v_head_dim": 256}, {"fuse_accum": True, "n_buffer": 3}),
        ({"window": 19, "has_sinks": True, "soft_cap": 2.0}, {}),
    ],
    ids=["float32_wide", "window_sinks_cap"],
)
def test_rows_are_right_among_sequences_at_every_edge(changes, knobs, monkeypatch):
    problem, config = dataclasses.replace(TINY, **changes), dataclasses.replace(CONFIG, **knobs)
    operands = inputs_of(problem)
    assert SPEC.unsupported(problem, "fwd", V6E) is None
    assert SPEC.searches["fwd"].infeasible(problem, V6E, config) is None
    # No entry of the table that no token has is read, nor any of the cache behind a sequence.
    behind = jnp.arange(operands.page_table.shape[1]) >= -(-operands.kv_lens[:, None] // problem.page_size)
    poisoned = operands._replace(page_table=jnp.where(behind, -1, operands.page_table))
    before = np.asarray(poisoned.k).tobytes()
    assert_right(problem, poisoned, run_viewed(SPEC, problem, config, poisoned, monkeypatch))
    assert np.asarray(poisoned.k).tobytes() == before


@pytest.mark.slow
@has_tokamax
def test_a_schedule_of_more_steps_than_scalar_memory_holds_is_walked_to_its_end(monkeypatch):
    problem = dataclasses.replace(TINY, batch=3, tokens=140, kv_len=140, workload="uni", at_edges=False)
    config = dataclasses.replace(CONFIG, bq_sz=8, bkv_sz=8, batch_size=1)
    operands = inputs_of(problem)
    walk = WALK.of_launch("", problem, config_to_dict(config))
    assert walk.visits > config.schedule_steps
    assert_right(problem, operands, run_viewed(SPEC, problem, config, operands, monkeypatch))


@pytest.mark.slow
@has_tokamax
def test_a_call_without_any_query_is_all_padding(monkeypatch):
    operands = inputs_of(TINY)
    empty = operands._replace(cu_q_lens=jnp.zeros_like(operands.cu_q_lens))
    found = run_viewed(SPEC, TINY, CONFIG, empty, monkeypatch)
    assert not np.asarray(found["out"], np.float32).any()
    assert np.isneginf(np.asarray(found["lse"])).all()


def test_the_walk_copies_the_tokens_that_blocks_of_queries_see_and_no_more():
    one = dataclasses.replace(TINY, batch=1, tokens=32, kv_len=64, at_edges=False)
    config = config_to_dict(dataclasses.replace(CONFIG, bq_sz=16, bkv_sz=16, batch_size=1))
    walk = WALK.of_launch("", one, config)
    # Queries stand at 32 to 63: the first block of them sees three blocks of keys, the second four.
    assert (walk.visits, walk.rests) == (7, 2)
    assert walk.visit_bytes == 16 * 2 * 256 * 2
    cut = WALK.of_launch("", dataclasses.replace(one, window=7), config)
    # What is before token 32 is cut off; from there the blocks of queries see one block of keys, and two.
    assert cut.visits == 3
    together = WALK.of_launch("", one, config | {"batch_size": 4})
    assert together.visits == 2


def test_candidates_start_with_the_untuned_config_and_all_may_run():
    search = SPEC.searches["fwd"]
    large = dataclasses.replace(
        TINY, batch=32, tokens=2048, kv_len=4096, num_q_heads=32, num_kv_heads=8, page_size=64, at_edges=False
    )
    found = search.candidates[""](large, V6E)
    assert found[0] == search.heuristic(large, V6E)
    assert len(set(found)) == len(found) > 100
    assert {search.infeasible(large, V6E, config) for config in found} == {None}


def test_a_call_that_is_not_causal_or_has_queries_of_codes_is_refused():
    assert "causal=0" in SPEC.unsupported(dataclasses.replace(TINY, causal=False), "fwd", V6E)
    codes = dataclasses.replace(TINY, q_scale="tensor", kv_dtype="int8", kv_scale="tensor")
    assert "qscale=tensor" in SPEC.unsupported(codes, "fwd", V6E)
