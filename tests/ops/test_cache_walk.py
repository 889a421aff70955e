"""The walks over a cache: blocks counted from sizes, against the pages and rows that a kernel is given."""

import dataclasses

import jax.numpy as jnp
import pytest

from attn_tune.kernels.paged_decode.pallas_tpu_paged.pages import pages_of
from attn_tune.ops.fields.cache_walk import key_heads
from attn_tune.ops.paged_decode.problem import Problem as DecodeProblem
from attn_tune.ops.paged_decode.walk import WALK as DECODE
from attn_tune.ops.ragged_paged.problem import Problem as RaggedProblem
from attn_tune.ops.ragged_paged.walk import WALK as RAGGED

SIZES = {"kv_len": 300, "num_q_heads": 32, "num_kv_heads": 8, "head_dim": 128, "v_head_dim": 128, "page_size": 16}
DECODING = DecodeProblem(batch=7, q_len=2, layout="head_first", workload="uni", **SIZES)
STEP = RaggedProblem(batch=9, tokens=70, layout="interleaved", workload="mix", **SIZES)


@pytest.mark.parametrize("window", [None, 0, 20, 100])
@pytest.mark.parametrize("block", [1, 4])
def test_blocks_of_whole_pages_are_those_that_the_kernel_is_given(block, window):
    p = dataclasses.replace(DECODING, window=window)
    pages = pages_of(
        jnp.zeros((p.batch, p.input_width), jnp.int32), jnp.asarray(p.lengths), q_len=p.q_len,
        page_size=p.page_size, window=window, num_pages=1, multiple=block,
    )  # fmt: skip
    walk = DECODE.of_launch("any", p, {"pages_per_compute_block": block})
    assert walk.visits == p.num_kv_heads * sum(-(-int(count) // block) for count in pages.counts)
    assert walk.visit_bytes == block * 16 * 2 * 128 * 2


@pytest.mark.parametrize("at_edges", [False, True])
@pytest.mark.parametrize("queries", [8, 32])
def test_blocks_of_queries_walk_the_pages_of_each_sequence_in_them(queries, at_edges):
    p = dataclasses.replace(STEP, at_edges=at_edges)
    owner = [row for row, (new, _) in enumerate(p.sequences) for _ in range(new)]
    pairs = visits = 0
    for begin in range(0, len(owner), queries):
        for row in sorted(set(owner[begin : begin + queries])):
            pairs += 1
            visits += max(1, -(-p.sequences[row][1] // (4 * p.page_size)))
    # Those without queries take a block of their own.
    idle = sum(not new for new, _ in p.sequences)
    walk = RAGGED.of_launch("any", p, {"num_kv_pages_per_block": 4, "num_queries_per_block": queries})
    assert (walk.rests, walk.visits) == (pairs + idle, visits + idle)
    assert walk.visit_bytes == 4 * 16 * 8 * 2 * 128 * 2


def test_what_lies_before_a_window_is_not_walked():
    config = {"num_kv_pages_per_block": 1, "num_queries_per_block": 8}
    p = dataclasses.replace(DECODING, layout="interleaved", workload="eq", window=40)
    # 258 is the first token that a query sees: the pages of 16 from 272 to 300 are two.
    assert DECODE.of_launch("any", p, config).visits == 2 * p.batch


def test_a_config_without_blocks_of_pages_has_no_walk():
    assert DECODE.of_launch("any", DECODING, {"step": 128}) is None


@pytest.mark.parametrize("kv_dtype", ["same", "float8_e4m3fn"])
@pytest.mark.parametrize("heads", [(4, 1), (8, 2), (32, 8), (64, 8), (64, 16), (6, 3), (40, 8), (128, 32), (10, 10)])
def test_heads_of_one_step_are_those_that_the_library_chooses(heads, kv_dtype):
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import kernel as library

    p = dataclasses.replace(
        DECODING, num_q_heads=heads[0], num_kv_heads=heads[1], kv_dtype=kv_dtype, layout="interleaved",
        kv_scale="none",
    )  # fmt: skip
    try:
        _, both = library.get_min_heads_per_blk(heads[0], 2 * heads[1], jnp.dtype(p.dtype), jnp.dtype(p.cache_dtype))
    except ValueError:
        both = None
    assert key_heads(p) == (None if both is None else both // 2)
