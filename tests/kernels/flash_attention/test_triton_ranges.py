"""The tiles that segments leave: nothing visible is skipped, and nothing hidden is called visible to all."""

import types

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from attn_tune.kernels.flash_attention.triton.config import ForwardConfig
from attn_tune.kernels.lang.triton.device.ranges import key_ranges, row_ranges, settled
from attn_tune.kernels.lang.triton.device.static import static_of
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.masks.mask_info import MaskInfo

SIZES = (16, 32)


def _static(q_len, kv_len, block_q, block_k):
    problem = Problem(
        batch=1, q_len=q_len, kv_len=kv_len, num_q_heads=1, num_kv_heads=1, head_dim=32, v_head_dim=32,
        scale=1.0, has_segments=True,
    )  # fmt: skip
    tile = ForwardConfig(block_q=block_q, block_k=block_k, num_warps=4, num_stages=2)
    return static_of(problem, tile, ranges=True)


def _tiles(ids, block):
    return [ids[start : start + block] for start in range(0, len(ids), block)]


def _settled(found):
    """The rows as the kernels read them: their own function, on numpy's arrays."""
    device_code = types.FunctionType(settled.fn.__code__, {"tl": np})
    return np.stack(device_code(*np.asarray(found).T), axis=-1)


def _check(ranges, own, other):
    """``ranges`` [tiles of own, 4] against the ids of each tile, pair by pair."""
    assert ranges.shape == (len(own), 4)
    for mine, (begin, full_begin, full_end, end) in zip(own, ranges, strict=True):
        meets = [bool(np.isin(mine, theirs).any()) for theirs in other]
        assert not any(meets[:begin] + meets[end:])
        assert begin <= full_begin <= full_end <= end <= len(other)
        for theirs in other[full_begin:full_end]:
            assert (mine[:, None] == theirs[None, :]).all()


ids = st.lists(st.integers(-2, 4), min_size=1, max_size=120)


@settings(deadline=None, max_examples=60)
@given(
    q=ids,
    kv=ids,
    sort=st.booleans(),
    block_q=st.sampled_from(SIZES),
    block_k=st.sampled_from(SIZES),
)
def test_ranges_hold_all_that_is_visible(q, kv, sort, block_q, block_k):
    q, kv = (np.array(sorted(x) if sort else x, np.int32) for x in (q, kv))
    static = _static(len(q), len(kv), block_q, block_k)
    of_rows = _settled(key_ranges(jnp.asarray(q[None]), jnp.asarray(kv[None]), static)[0])
    of_keys = _settled(row_ranges(jnp.asarray(q[None]), jnp.asarray(kv[None]), static)[0])
    q_tiles, k_tiles = _tiles(q, block_q), _tiles(kv, block_k)
    _check(of_rows, q_tiles, k_tiles)
    _check(of_keys, k_tiles, q_tiles)


def test_packed_documents_leave_their_own_tiles():
    documents = np.repeat([0, 1, 2], [64, 32, 48])[None].astype(np.int32)
    static = _static(144, 144, 16, 16)
    found = _settled(key_ranges(jnp.asarray(documents), jnp.asarray(documents), static)[0])
    expected = [(0, 0, 4, 4)] * 4 + [(4, 4, 6, 6)] * 2 + [(6, 6, 9, 9)] * 3
    assert found.tolist() == [list(row) for row in expected]


def test_padding_is_skipped():
    q = np.repeat([0, -1], [40, 24])[None].astype(np.int32)
    kv = np.repeat([0, -2], [40, 24])[None].astype(np.int32)
    static = _static(64, 64, 16, 16)
    found = _settled(key_ranges(jnp.asarray(q), jnp.asarray(kv), static)[0])
    # The third tile holds tokens and padding, so that no run is known for its rows; the last sees nothing.
    assert found.tolist() == [[0, 0, 2, 3], [0, 0, 2, 3], [0, 3, 3, 3], [2, 3, 3, 3]]


def test_a_run_with_a_gap_is_no_run():
    q = np.zeros((1, 16), np.int32)
    kv = np.repeat([0, 1, 0], 16)[None].astype(np.int32)
    found = _settled(key_ranges(jnp.asarray(q), jnp.asarray(kv), _static(16, 48, 16, 16))[0])
    assert found.tolist() == [[0, 3, 3, 3]]


@pytest.mark.parametrize("ranges", [key_ranges, row_ranges])
def test_without_segments_there_are_none(ranges):
    assert ranges(None, None, _static(16, 16, 16, 16)) is None


@pytest.mark.parametrize("used", [200, 230, 256])
def test_padding_of_the_constructors_meets_no_document_but_its_neighbour(used):
    """A tile that holds the end of the last document and padding walks that document, not all of them."""
    offsets = jnp.array([0, 70, 150, used])
    mask = MaskInfo.from_cum_seqlens(offsets, q_len=256, kv_len=256)
    assert mask.q_segment_ids is not None
    assert mask.kv_segment_ids is not None
    static = _static(256, 256, 16, 16)
    for found in (
        key_ranges(mask.q_segment_ids, mask.kv_segment_ids, static),
        row_ranges(mask.q_segment_ids, mask.kv_segment_ids, static),
    ):
        begin, _, _, end = _settled(found[0]).T
        # The last document begins in tile 9, with the end of the one before.
        of_last = -(-used // 16) - 1
        assert begin[of_last] == 150 // 16
        assert (end[: 70 // 16] <= 70 // 16 + 1).all()
        # Padding alone meets nothing that lies in whole tiles of documents.
        alone = np.arange(of_last + 1, 256 // 16)
        assert all(begin[i] >= used // 16 or end[i] <= begin[i] for i in alone)
