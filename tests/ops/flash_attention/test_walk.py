"""The walk of attention over blocks, against counting; its default blocks and longer problems."""

import numpy as np
import pytest

from attn_tune.ops.flash_attention.walk import (
    has_single_block,
    is_default,
    longer,
    visible_blocks,
    walk_of,
)
from tests.tuner.offline.test_predict import FORWARD, make_problem

PLAIN = {"block_q": 128, "block_kv": 128, "q_layout": "head_dim_minor", "vmem_limit_kib": 65536}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (PLAIN, True),
        (PLAIN | {"block_q": 256}, False),
        (PLAIN | {"q_layout": "seq_minor"}, False),
        ({"dq": PLAIN, "dkv": PLAIN}, True),
        ({"dq": PLAIN, "dkv": PLAIN | {"block_kv": 512}}, False),
        # How many sequences a step takes is no block of them.
        ({"block_q": 128, "block_b": 4}, True),
        ({"num_warps": 4}, False),
    ],
)
def test_default_blocks_are_those_of_all_parts_and_layouts(config, expected):
    assert is_default(config) is expected


def test_a_block_as_long_as_the_queries_or_keys_is_the_only_one():
    problem = make_problem(q_len=512, kv_len=2048)
    assert has_single_block({"block_q": 512, "block_kv": 128}, problem)
    assert has_single_block({"dq": {"block_kv": 2048}}, problem)
    assert not has_single_block({"block_q": 128, "block_kv": 512 * 2, "block_b": 512}, problem)


def test_longer_problems_have_twice_the_lengths_the_batch_or_both():
    sizes = [(p.batch, p.q_len, p.kv_len) for p in longer(make_problem(q_len=512, kv_len=1024))]
    assert sizes == [(2, 1024, 2048), (4, 512, 1024), (4, 1024, 2048)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [(None, None), (100, None), (300, 50), (0, 0)])
@pytest.mark.parametrize(("t", "s"), [(512, 512), (384, 900), (130, 64)])
@pytest.mark.parametrize(("block_q", "block_k"), [(128, 128), (64, 256), (512, 128)])
def test_visible_blocks_are_those_with_a_visible_pair(causal, window, t, s, block_q, block_k):
    problem = make_problem(q_len=t, kv_len=s, causal=causal, window=window)
    left, right = problem.bounds
    row, column = np.arange(t)[:, None] + problem.offset, np.arange(s)[None, :]
    seen = np.ones((t, s), bool)
    if left is not None:
        seen &= column >= row - left
    if right is not None:
        seen &= column <= row + right
    rows = np.add.reduceat(seen, np.arange(0, t, block_q), axis=0)
    blocks = np.add.reduceat(rows, np.arange(0, s, block_k), axis=1)
    # A block that only its corner rules out may be visited without need, never the other way round.
    count = visible_blocks(problem, block_q, block_k)
    assert count >= np.count_nonzero(blocks)
    if left is None and right in (None, 0):
        assert count == np.count_nonzero(blocks)


def test_the_forward_rests_on_rows_and_the_key_gradient_on_columns():
    problem = make_problem()
    forward = walk_of("splash_mha_fwd", problem, FORWARD)
    dkv = walk_of("splash_mha_dkv", problem, {"dq": {}, "dkv": FORWARD})
    assert forward
    assert dkv
    assert forward.rests == 2 * 4 * (2048 // 256)
    assert dkv.rests == 2 * 4 * (2048 // 512)
    assert forward.steps == dkv.steps == 2 * 4 * 8 * 4
    # Row block i of 256 sees column blocks up to (i + 1) * 256 - 1: 1, 1, 2, 2, 3, 3, 4, 4.
    assert forward.visits == dkv.visits == 2 * 4 * 20
    assert forward.visit_bytes == 512 * 2 * (128 + 128)


def test_a_config_without_blocks_has_no_walk():
    assert walk_of("fusion", make_problem(), {"chunk": 128}) is None
