"""MaskInfo, heads, modes and partition specs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import attn_tune
from attn_tune.api.meshes.partition_specs import stable_spec
from attn_tune.api.modes import Mode, mode_of
from attn_tune.ops.fields.heads import expand_heads, repeat_kv_heads
from attn_tune.ops.masks.mask_info import MaskInfo
from attn_tune.ops.masks.visibility import causal_mask, combine_masks, split_mask
from attn_tune.schema.errors import UsageError
from tests.kernels.dense import bounds

B, N, T, S = 2, 4, 5, 7
DENSE = np.random.default_rng(0).random((B, N, T, S)) < 0.6
Q_IDS = np.array([[0, 0, 1, 1, 2], [0, 1, 1, 1, 1]], np.int32)
KV_IDS = np.array([[0, 0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 1, 1, 3]], np.int32)
SAME = (Q_IDS[:, :, None] == KV_IDS[:, None, :])[:, None]
LENGTHS = np.arange(S) < np.array([[3], [7]])


def dense(info, **sizes):
    return np.broadcast_to(info.get_or_compute_attention_mask(**sizes), (B, N, T, S))


@pytest.mark.parametrize(
    ("make", "want"),
    [
        (lambda: MaskInfo.from_dense(DENSE), DENSE),
        (lambda: MaskInfo.from_dense(DENSE[:, :2]), np.repeat(DENSE[:, :2], 2, axis=1)),
        (lambda: MaskInfo.from_segments(Q_IDS, KV_IDS), SAME),
        (
            lambda: MaskInfo.from_segments(Q_IDS, KV_IDS, causal=True),
            SAME & bounds(T, S, causal=True),
        ),
        (lambda: MaskInfo.from_lengths([3, 7], q_len=T, kv_len=S), LENGTHS[:, None, None]),
        (
            lambda: MaskInfo.from_lengths([3, 7], [2, 5], q_len=T, kv_len=S, sliding_window=(2, 1)),
            LENGTHS[:, None, None]
            & (np.arange(T) < np.array([[2], [5]]))[:, None, :, None]
            & bounds(T, S, left=2, right=1),
        ),
        (
            lambda: MaskInfo.from_segments(Q_IDS, KV_IDS) & MaskInfo(causal=True) & MaskInfo(sliding_window=2),
            SAME & bounds(T, S, causal=True, left=2),
        ),
        (
            lambda: (
                MaskInfo.from_segments(Q_IDS, KV_IDS)
                & MaskInfo.from_lengths([3, 7], q_len=T, kv_len=S, causal=True)
                & MaskInfo.from_dense(DENSE[:, :1])
            ),
            SAME & LENGTHS[:, None, None] & DENSE[:, :1] & bounds(T, S, causal=True),
        ),
    ],
)
def test_dense_form(make, want):
    got = make().get_or_compute_attention_mask()
    if got.shape[1] == 2:  # key/value heads stay; the op repeats them
        got = np.repeat(got, 2, axis=1)
    np.testing.assert_array_equal(np.broadcast_to(got, (B, N, T, S)), np.broadcast_to(want, (B, N, T, S)))


def test_flags_alone_need_sizes():
    assert MaskInfo().get_or_compute_attention_mask() is None
    with pytest.raises(UsageError, match="give q_len and kv_len"):
        MaskInfo(causal=True).get_or_compute_attention_mask()
    np.testing.assert_array_equal(dense(MaskInfo(causal=True), q_len=T, kv_len=S)[0, 0], bounds(T, S, causal=True))
    np.testing.assert_array_equal(causal_mask(T, S), bounds(T, S, causal=True))
    np.testing.assert_array_equal(causal_mask(T), np.tril(np.ones((T, T), bool)))


def test_and_keeps_structure_where_it_can():
    both = MaskInfo.from_segments(Q_IDS, KV_IDS) & MaskInfo(causal=True, sliding_window=(4, 2))
    assert both.attention_mask is None
    assert (both.causal, both.sliding_window) == (True, (4, 2))
    assert (both & MaskInfo(sliding_window=(2, None))).sliding_window == (2, 2)
    clash = both & MaskInfo.from_lengths([3, 7], q_len=T, kv_len=S)
    assert clash.attention_mask is not None
    np.testing.assert_array_equal(clash.q_segment_ids, Q_IDS)


def test_lengths_are_kept_as_long_as_they_say_all_that_the_segments_say():
    padded = MaskInfo.from_lengths([3, S + 5], q_len=T, kv_len=S)
    np.testing.assert_array_equal(padded.kv_lengths, [3, S])
    for both in (padded & MaskInfo(causal=True), MaskInfo.from_dense(DENSE) & padded):
        np.testing.assert_array_equal(both.kv_lengths, [3, S])
    segments = MaskInfo.from_segments(Q_IDS, KV_IDS)
    assert (segments & padded).kv_lengths is None
    # Of the other way round the segments turn dense, and the lengths still say all that is left of them.
    np.testing.assert_array_equal((padded & segments).kv_lengths, [3, S])
    assert padded.q_lengths is None
    of_both = MaskInfo.from_lengths([3, 7], [2, T + 1], q_len=T, kv_len=S)
    np.testing.assert_array_equal(of_both.q_lengths, [2, T])
    assert padded.specs(batch="data").kv_lengths == P("data")
    assert of_both.specs(batch="data").q_lengths == P("data")


def test_lengths_are_not_taken_for_those_of_the_ids_of_another_mask():
    segments, lengths = MaskInfo.from_segments(Q_IDS, KV_IDS), MaskInfo(kv_lengths=jnp.array([3, 7]))
    for both in (segments & lengths, lengths & segments):
        assert both.kv_lengths is None
        np.testing.assert_array_equal(both.kv_segment_ids, KV_IDS)


def test_offsets_are_kept_as_long_as_they_say_all_that_segments_and_positions_say():
    ends = jnp.array([0, 2, 5]), jnp.array([0, 3, 7])
    packed = MaskInfo.from_cum_seqlens(*ends, q_len=T, kv_len=S)
    segments = MaskInfo.from_segments(Q_IDS[:1], KV_IDS[:1])
    for both in (packed & MaskInfo(causal=True), MaskInfo.from_dense(DENSE[:1]) & packed, packed & segments):
        np.testing.assert_array_equal(both.q_offsets, ends[0])
        np.testing.assert_array_equal(both.kv_offsets, ends[1])
    positions = MaskInfo(q_positions=jnp.zeros((1, T), jnp.int32), kv_positions=jnp.zeros((1, S), jnp.int32))
    alone = MaskInfo.from_cum_seqlens(ends[0], q_len=T, kv_len=T)
    for both in (segments & packed, positions & packed, alone & positions, positions & alone):
        assert (both.q_offsets, both.kv_offsets) == (None, None)
    assert packed.specs(batch="data").q_offsets == packed.specs(batch="data").kv_offsets == P(None)


def test_ids_of_packed_sequences_are_made_without_a_loop():
    """A loop would take the host to each of its steps: on an H200 it doubled the time of a forward."""
    made = jax.make_jaxpr(lambda ends: MaskInfo.from_cum_seqlens(ends, q_len=T, kv_len=T))(jnp.array([0, 2, 5]))
    assert not {"scan", "while"} & {equation.primitive.name for equation in made.jaxpr.eqns}


@pytest.mark.parametrize("lengths", [np.array([100, 7], np.uint8), np.array([100, 7], np.int8), np.array([2**33, 7])])
def test_lengths_of_any_integers_are_cut_at_the_padded_length(lengths):
    padded = MaskInfo.from_lengths(lengths, q_len=300, kv_len=300)
    np.testing.assert_array_equal(padded.kv_lengths, np.minimum(lengths.astype(np.int64), 300))


def test_positions_are_adopted_by_a_causal_edge():
    packed = MaskInfo.from_cum_seqlens(jnp.array([0, 2, 5]), jnp.array([0, 3, 7]), q_len=T, kv_len=S)
    got = (MaskInfo(causal=True) & packed).get_or_compute_attention_mask()[0, 0]
    want = np.zeros((T, S), bool)
    want[:2, :3] = bounds(2, 3, causal=True)
    want[2:, 3:] = bounds(3, 4, causal=True)
    np.testing.assert_array_equal(got, want)


def test_mask_info_is_a_pytree_whose_flags_are_static():
    info = MaskInfo.from_segments(Q_IDS, KV_IDS, causal=True, sliding_window=3)
    leaves, tree = jax.tree.flatten(info)
    assert len(leaves) == 2
    back = jax.tree.unflatten(tree, leaves)
    assert (back.causal, back.sliding_window) == (True, (3, 3))
    traced = jax.jit(lambda m: m.get_or_compute_attention_mask())(info)
    np.testing.assert_array_equal(traced, info.get_or_compute_attention_mask())


@pytest.mark.parametrize("half", ["q_segment_ids", "kv_segment_ids", "q_positions", "kv_positions"])
def test_ids_and_positions_of_one_side_alone_are_not_dropped_beside_those_of_another_mask(half):
    packed = MaskInfo.from_cum_seqlens(jnp.array([0, 2, 5]), jnp.array([0, 3, 7]), q_len=T, kv_len=S)
    rows = MaskInfo(**{half: jnp.zeros((1, T if half[0] == "q" else S), jnp.int32)}, causal=True)
    side, _, name = half.partition("_")
    with pytest.raises(UsageError, match=f"{'kv' if side == 'q' else 'q'}_{name} is missing: give both sides"):
        packed & rows


def test_specs_of_what_serves_all_sequences_leave_it_whole():
    packed = MaskInfo.from_cum_seqlens(jnp.array([0, 2, 5]), jnp.array([0, 3, 7]), q_len=T, kv_len=S)
    specs = (packed & MaskInfo.from_dense(jnp.ones((1, 2, T, S), bool))).specs("data", "model")
    assert specs.q_segment_ids == specs.kv_positions == P(None, None)
    assert specs.attention_mask == P(None, "model", None, None)


def test_specs_shard_batch_and_heads_where_there_are_any():
    info = MaskInfo.from_segments(Q_IDS, KV_IDS) & MaskInfo.from_dense(DENSE[:1])
    specs = info.specs("data", "model")
    assert specs.attention_mask == P(None, "model", None, None)
    assert specs.q_segment_ids == P("data", None)
    assert specs.q_positions is None


def test_split_and_combine():
    q_mask, kv_mask = split_mask(jnp.asarray(DENSE))
    np.testing.assert_array_equal(q_mask, DENSE.any(axis=(1, 3)))
    np.testing.assert_array_equal(kv_mask, DENSE.any(axis=(1, 2)))
    np.testing.assert_array_equal(
        combine_masks(q_mask, kv_mask),
        np.asarray(q_mask)[:, :, None] & np.asarray(kv_mask)[:, None],
    )


def test_heads_are_repeated_group_by_group():
    key = jnp.arange(2.0)[None, None, :, None]
    repeated, _ = repeat_kv_heads(key, key, 3)
    assert repeated[0, 0, :, 0].tolist() == [0, 0, 0, 1, 1, 1]
    assert expand_heads(jnp.arange(2)[None, :], 4, 2).tolist() == [[0, 0, 1, 1]]
    assert expand_heads(None, 4, 2) is None
    with pytest.raises(UsageError, match="3 heads"):
        expand_heads(jnp.zeros((1, 3)), 4, 2)


def test_mode_reads_the_length_axis():
    assert mode_of(jnp.zeros((2, 1, 4, 8))) is Mode.DECODE
    assert mode_of(jnp.zeros((2, 1, 4, 8)), layout="BNTH") is Mode.TRAIN
    assert mode_of(jnp.zeros((2, 4, 1, 8)), layout="BNTH") is Mode.DECODE
    with pytest.raises(UsageError, match="layout"):
        mode_of(jnp.zeros((2, 1, 4, 8)), layout="THBN")


def test_stable_spec():
    spec = P("data", None, ("model", "expert"), None)
    assert stable_spec(None) is None
    assert stable_spec(spec) == spec
    assert stable_spec(spec, [0]) == P("data", None, None, None)
    assert stable_spec(spec, [2], source=P(None, None, "other", None)) == P(None, None, "other", None)
    mesh = jax.sharding.AbstractMesh((2, 2, 3), ("data", "model", "expert"))
    assert stable_spec(spec, mesh=mesh, shape=(4, 1, 12, 8)) == spec
    assert stable_spec(spec, mesh=mesh, shape=(3, 1, 8, 8)) == P(None, None, None, None)
    with pytest.raises(UsageError, match="no axis 'nowhere'"):
        stable_spec(P("nowhere"), mesh=mesh, shape=(4,))
    with pytest.raises(UsageError, match="axis 7"):
        stable_spec(spec, [7])


@pytest.mark.parametrize("far", [2**30, 2**31 - 1, 2**40])
def test_a_window_beyond_what_positions_of_32_bits_can_add_hides_nothing(far):
    assert MaskInfo(sliding_window=(far, 3)).window == (None, 3)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 20, 1, 8)), jnp.float32)
    positions = jnp.arange(20)[None]
    info = MaskInfo(q_positions=positions, kv_positions=positions, sliding_window=far)
    np.testing.assert_array_equal(
        attn_tune.flash_attention(x, x, x, mask_info=info), attn_tune.flash_attention(x, x, x)
    )
