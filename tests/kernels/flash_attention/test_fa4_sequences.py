"""Offsets as FlashAttention-4's kernels take them: every token lies in one sequence, for any offsets."""

import dataclasses

import numpy as np
import pytest

from attn_tune.kernels.flash_attention._fa4.sequences import offsets_of, taken_apart
from attn_tune.ops.flash_attention.features import features, samples
from attn_tune.ops.flash_attention.inputs import make_inputs
from attn_tune.ops.flash_attention.operands import Operands
from attn_tune.ops.flash_attention.problem import Problem

PACKED = Problem(
    batch=1, q_len=100, kv_len=70, num_q_heads=1, num_kv_heads=1, head_dim=8, v_head_dim=8,
    has_segments=True, has_offsets=True,
)  # fmt: skip
ROWS = np.zeros((1, 1, 1, 8), np.float32)


def found(problem, q, kv):
    operands = Operands(q=ROWS, k=ROWS, v=ROWS, q_offsets=np.array(q), kv_offsets=np.array(kv))
    return offsets_of(problem, operands)


def test_what_lies_behind_the_last_sequence_are_queries_without_keys_and_keys_without_queries():
    (both,) = found(PACKED, [0, 10, 10, 50], [0, 0, 30, 60])
    np.testing.assert_array_equal(both, [[0, 10, 10, 50, 100, 100], [0, 0, 30, 60, 60, 70]])
    (both,) = found(PACKED, [0, 100], [0, 70])
    np.testing.assert_array_equal(both, [[0, 100, 100, 100], [0, 70, 70, 70]])


@pytest.mark.parametrize("seed", range(20))
def test_offsets_that_nothing_can_be_right_for_stay_within_the_arrays(seed):
    """They may come from a program, which cannot refuse them; the kernels read and write where they say."""
    draw = np.random.default_rng(seed).integers(-200, 300, (2, 6))
    (both,) = found(PACKED, *draw)
    both = np.asarray(both)
    assert (both[:, 0] == 0).all()
    assert (np.diff(both) >= 0).all()
    np.testing.assert_array_equal(both[:, -1], [100, 70])
    # The queries behind the last sequence see no key.
    assert both[1, -3] == both[1, -2]


@pytest.mark.parametrize(
    ("other", "is_taken"),
    [
        ({}, True),
        ({"causal": True, "q_len": 70}, True),
        ({"window": (9, None), "q_len": 70}, True),
        ({"causal": True}, False),
        ({"causal": True, "q_len": 70, "has_positions": True}, False),
    ],
)
def test_sequences_are_taken_by_their_offsets_where_both_sides_end_alike_or_nothing_counts_from_there(other, is_taken):
    assert bool(found(dataclasses.replace(PACKED, **other), [0, 30, 70], [0, 30, 70])) is is_taken


def test_many_short_sequences_share_tiles():
    assert found(PACKED, range(8), range(8))
    assert not found(PACKED, range(9), range(9))


def test_without_offsets_nothing_is_taken_apart():
    p = dataclasses.replace(PACKED, has_offsets=False)
    operands = Operands(q=ROWS, k=ROWS, v=ROWS)
    assert taken_apart(p, operands) == (p, operands, ())


@pytest.mark.parametrize("name", [name for name in samples() if name.startswith("offsets")])
def test_proofs_of_rows_with_offsets_take_sequences_by_them(name):
    sample = samples()[name]
    taken = [bool(offsets_of(p, make_inputs(p, "fwd", 0))) for p in features(sample)]
    # With positions the kernels walk lists of tiles.
    assert taken == [not sample.has_positions] * len(taken)
