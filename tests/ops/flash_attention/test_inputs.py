"""The inputs that kernels are judged by: what an even seed does not try, an odd one does."""

import dataclasses

import numpy as np
import pytest

from attn_tune.ops.fields.long_keys import EVERY, LITTLE_LONGER, LONGER
from attn_tune.ops.flash_attention.inputs import make_inputs, make_operands
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.flash_attention.reference import reference
from attn_tune.ops.masks.mask_info import MaskInfo

TILE = 64


def _problem(**flags):
    return Problem(
        batch=1, q_len=256, kv_len=1024, num_q_heads=2, num_kv_heads=2, head_dim=64, v_head_dim=64,
        scale=0.125, **flags,
    )  # fmt: skip


def _moves(operands, by):
    """Counts the moves of a row's maximum by more than ``by``, in base 2, after its first tile of keys."""
    q, k = (np.asarray(x, np.float32) for x in (operands.q, operands.k))
    logits = np.einsum("btnh,bsnh->bnts", q, k) * 0.125 / np.log(2)
    tiles = logits.reshape(*logits.shape[:3], -1, TILE).max(-1)
    kept, moves = tiles[..., 0], 0
    for tile in np.moveaxis(tiles, -1, 0)[1:]:
        far = tile > kept + by
        kept, moves = np.where(far, tile, kept), moves + int(far.sum())
    return moves


def test_the_running_maximum_moves_far_with_odd_seeds_and_only_with_them():
    assert _moves(make_inputs(_problem(), "fwd", 0), 8.0) == 0
    # 512 rows; most move once or more.
    assert _moves(make_inputs(_problem(), "fwd", 1), 8.0) > 256


@pytest.mark.parametrize(
    ("flags", "direction"),
    [({"soft_cap": 50.0}, "fwd"), ({"dtype": "float32"}, "bwd"), ({"logits_dtype": "bfloat16"}, "bwd")],
)
def test_soft_caps_and_backwards_of_rounded_differences_have_keys_that_are_all_alike(flags, direction):
    keys = np.asarray(make_operands(_problem(**flags), direction, 1).k, np.float32)
    assert np.linalg.norm(keys, axis=-1).max() < 2 * np.sqrt(64)


def test_backwards_of_sixteen_bits_have_the_long_keys_too():
    residuals = make_inputs(_problem(causal=True), "bwd", 1).residuals
    operands = make_operands(_problem(causal=True), "fwd", 1)
    np.testing.assert_array_equal(make_operands(_problem(causal=True), "bwd", 1).k, operands.k)
    np.testing.assert_array_equal(residuals.lse, reference(_problem(causal=True), "fwd", operands)["lse"])


def test_gradients_of_one_query_are_more_than_rounding_noise():
    """A kernel that sums the row sums itself is off by a few roundings of float32, on every draw."""
    p = Problem(
        batch=2, q_len=1, kv_len=301, num_q_heads=4, num_kv_heads=4, head_dim=64, v_head_dim=64, scale=0.075
    )  # fmt: skip
    inputs = make_inputs(p, "bwd", 1009)
    rounding = 16 * np.finfo(np.float32).eps * np.abs(inputs.delta).max()
    exact, off = (reference(p, "bwd", inputs._replace(delta=inputs.delta + shift)) for shift in (0.0, rounding))
    assert np.linalg.norm(off["dk"] - exact["dk"]) < 1e-3 * np.linalg.norm(exact["dk"])


def test_the_first_sink_of_odd_seeds_is_none():
    even, odd = (np.asarray(make_operands(_problem(has_sinks=True), "fwd", seed).sinks) for seed in (0, 1))
    assert np.isfinite(even).all()
    np.testing.assert_array_equal(np.isneginf(odd), [True, False])


def test_positions_of_odd_seeds_cross_the_end_of_sixteen_bits():
    made = make_operands(_problem(has_positions=True, causal=True), "fwd", 1)
    for positions in (made.q_positions, made.kv_positions):
        assert {True, False} == set((np.asarray(positions).astype(np.int16) < 0).ravel().tolist())


@pytest.mark.parametrize(("dtype", "times"), [("float32", LITTLE_LONGER), ("float16", LONGER)])
def test_the_long_keys_are_the_others_made_longer(dtype, times):
    keys = np.asarray(make_inputs(_problem(dtype=dtype), "fwd", 3).k)
    plain = np.asarray(make_operands(_problem(dtype=dtype, soft_cap=50.0), "fwd", 3).k)
    is_long = np.arange(1024) % EVERY == EVERY // 2
    np.testing.assert_array_equal(keys[:, ~is_long], plain[:, ~is_long])
    np.testing.assert_array_equal(keys[:, is_long], plain[:, is_long] * keys.dtype.type(times))


@pytest.mark.parametrize("q_len", [1, 8, 256])
def test_queries_at_the_end_of_packed_documents_see_some_keys(q_len):
    problem = dataclasses.replace(_problem(has_segments=True), q_len=q_len)
    for seed in range(4):
        operands = make_inputs(problem, "fwd", seed)
        q_ids, kv_ids = (np.asarray(x) for x in (operands.q_segments, operands.kv_segments))
        sees = (q_ids[:, :, None] == kv_ids[:, None, :]).any(-1)
        assert sees.mean() > 0.9


@pytest.mark.parametrize(("q_len", "kv_len"), [(256, 256), (61, 300), (300, 61), (1, 200)])
def test_offsets_say_what_ids_and_positions_say(q_len, kv_len):
    problem = dataclasses.replace(
        _problem(has_segments=True, has_offsets=True, has_positions=True, causal=True), q_len=q_len, kv_len=kv_len
    )
    for seed in range(3):
        made = make_inputs(problem, "fwd", seed)
        same = MaskInfo.from_cum_seqlens(made.q_offsets, made.kv_offsets, q_len=q_len, kv_len=kv_len)
        ids = MaskInfo.from_segments(made.q_segments, made.kv_segments)
        given = ids & MaskInfo(q_positions=made.q_positions, kv_positions=made.kv_positions)
        masks = ((mask & MaskInfo(causal=True)).get_or_compute_attention_mask() for mask in (given, same))
        np.testing.assert_array_equal(*masks)


@pytest.mark.parametrize("batch", [1, 3])
def test_lengths_leave_a_lone_sequence_keys_and_one_of_several_none(batch):
    problem = dataclasses.replace(_problem(has_segments=True, has_lengths=True), batch=batch, kv_len=500)
    lengths = np.asarray(make_inputs(problem, "fwd", 0).kv_lengths)
    assert (lengths == 0).sum() == (batch > 1)


def test_exponentials_of_some_logits_of_long_keys_overflow():
    problem = Problem(batch=1, q_len=389, kv_len=389, num_q_heads=2, num_kv_heads=1, head_dim=64, v_head_dim=64)
    inputs = make_inputs(problem, "fwd", 1)
    logits = np.einsum("bthd,bsd->bhts", inputs.q.astype(np.float32), inputs.k[:, :, 0].astype(np.float32)) / 8
    assert logits.max() > np.log(np.finfo(np.float32).max)


def test_dropout_is_that_of_a_shard_of_a_larger_call():
    p = _problem(dropout_rate=0.5)
    seed, first_batch, first_head = np.asarray(make_inputs(p, "fwd", 0).dropout)
    assert seed != np.asarray(make_inputs(p, "fwd", 1).dropout)[0]
    assert first_batch > 0
    assert first_head > 0
