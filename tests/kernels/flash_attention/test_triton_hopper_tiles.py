"""The tiles that the forward for Hopper walks, and their order: its device code, run on plain integers."""

import dataclasses
import types

import jax.numpy as jnp
import numpy as np
import pytest

from attn_tune.kernels.lang.gluon.attention import tiles
from attn_tune.kernels.lang.gluon.attention.config import BLOCK_Q, ForwardConfig
from attn_tune.kernels.lang.gluon.attention.plan import num_tiles, plan_of
from attn_tune.kernels.lang.triton.device.ranges import key_ranges
from attn_tune.kernels.lang.triton.device.static import static_of
from attn_tune.ops.flash_attention.problem import Problem


@pytest.fixture(autouse=True)
def integers(monkeypatch):
    """The device's functions of scalars, on Python's."""
    scalars = types.SimpleNamespace(where=lambda condition, a, b: a if condition else b, minimum=min, maximum=max)
    monkeypatch.setattr(tiles, "gl", scalars)
    monkeypatch.setattr(tiles, "place_of", tiles.place_of.fn)


def _problem(T=512, S=None, **flags):
    return Problem(
        batch=2, q_len=T, kv_len=S or T, num_q_heads=4, num_kv_heads=2, head_dim=64, v_head_dim=64,
        scale=0.125, **flags,
    )  # fmt: skip


def _config(block_k=128, heads=4):
    return ForwardConfig(block_k=block_k, num_stages=2, heads_per_section=heads, num_programs=3)


def _documents(p, seed, runs):
    rng = np.random.default_rng(seed)
    cuts = [np.sort(rng.integers(0, p.q_len, runs)) for _ in range(p.batch)]
    ids = np.stack([np.searchsorted(c, np.arange(p.q_len), side="right") for c in cuts])
    return ids.astype(np.int32)


def _near(p, lengths):
    """``[B, T, S]``: which keys a row sees by their positions."""
    row, key = np.arange(p.q_len)[:, None] + p.offset, np.arange(p.kv_len)[None]
    left, right = p.bounds
    seen = np.ones((p.batch, p.q_len, p.kv_len), bool)
    if right is not None:
        seen &= key <= row + right
    if left is not None:
        seen &= key >= row - left
    if lengths is not None:
        seen &= key[None] < lengths[:, None, None]
    return seen


def _same(p, ids):
    """``[B, T, S]``: which keys share a segment with a row."""
    if ids is None:
        return np.ones((p.batch, p.q_len, p.kv_len), bool)
    return ids[:, :, None] == ids[:, None, :]


def _facts(p, c, ids=None, lengths=None):
    """The plan, and ``(batch entry, block, facts)`` of each tile; the same for every head."""
    masked = dataclasses.replace(p, has_segments=ids is not None, has_lengths=False)
    static = static_of(masked, c, ranges=True)
    plan = plan_of(p, c, static)
    rows = None
    if ids is not None:
        rows = np.asarray(key_ranges(jnp.asarray(ids), jnp.asarray(ids), static))
    found = []
    for tile in range(num_tiles(p)):
        block, batch, _ = tiles.place_of(tile, static)
        stored = (0, 0, 0, 0, 0) if rows is None else map(int, rows[batch, block])
        length = p.kv_len if lengths is None else int(lengths[batch])
        info = tiles.tile_info_of.fn(tiles.StoredInfo(tile, *stored, length), plan, static)
        found.append((batch, block, info))
    return plan, found


def _check(p, c, ids=None, lengths=None):
    near, same = _near(p, lengths), _same(p, ids)
    plan, found = _facts(p, c, ids, lengths)
    for batch, block, info in found:
        rows = slice(block * BLOCK_Q, (block + 1) * BLOCK_Q)
        assert 0 <= info.begin < info.end <= -(-p.kv_len // c.block_k)
        assert info.begin <= info.full_begin
        assert info.full_end <= info.end
        walked = np.zeros(p.kv_len, bool)
        walked[info.begin * c.block_k : info.end * c.block_k] = True
        assert not ((near & same)[batch, rows] & ~walked).any()
        for seen, begin, end in (
            (near, info.full_begin, info.full_end),
            (same, info.same_begin, info.same_end),
        ):
            for whole in range(begin, end):
                keys = seen[batch, rows, whole * c.block_k : (whole + 1) * c.block_k]
                assert keys.all()
                # Past the end of the keys segments are undefined.
                assert keys.shape[1] == c.block_k or seen is same
        for tile in range(info.begin, info.end):
            if (plan.last_keys if tile == info.end - 1 else plan.other_keys) == "none":
                keys = near[batch, rows, tile * c.block_k : (tile + 1) * c.block_k]
                assert keys.all()
                assert keys.shape[1] == c.block_k


@pytest.mark.parametrize("block_k", [64, 128])
@pytest.mark.parametrize(
    "p",
    [
        _problem(),
        _problem(T=500),
        _problem(causal=True),
        _problem(T=300, S=1000, causal=True),
        _problem(T=1000, S=300, causal=True),
        _problem(T=700, causal=True, window=(130, None)),
        _problem(T=700, window=(64, 200)),
    ],
    ids=lambda p: p.signature.text[19:],
)
def test_all_that_is_visible_is_walked_and_what_is_called_whole_is(p, block_k):
    _check(p, _config(block_k))


@pytest.mark.parametrize("block_k", [64, 128])
@pytest.mark.parametrize("runs", [0, 1, 3, 40])
@pytest.mark.parametrize("flags", [{}, {"causal": True}, {"causal": True, "window": (100, None)}])
def test_of_documents_too(flags, runs, block_k):
    p = _problem(T=700, has_segments=True, **flags)
    _check(p, _config(block_k), _documents(p, runs, runs))


def test_of_documents_in_any_order_too():
    p = _problem(T=512, has_segments=True, causal=True)
    ids = np.random.default_rng(0).integers(0, 3, (2, 512 // 64)).repeat(64, 1).astype(np.int32)
    _check(p, _config(64), ids)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [(1, 512), (128, 300), (0, 511)])
def test_of_lengths_too(lengths, causal):
    p = _problem(has_segments=True, has_lengths=True, causal=causal)
    _check(p, _config(), lengths=np.array(lengths))


@pytest.mark.parametrize("heads", [2, 4, 8])
def test_the_queue_has_every_tile_once_by_sections_and_last_rows_first(heads):
    p = _problem(T=700, has_segments=True, causal=True)
    c = _config(heads=heads)
    static = static_of(p, c, ranges=True)
    plan = plan_of(p, c, static)
    total = num_tiles(p)
    order = [tiles.tile_at.fn(place, plan, static) for place in range(total + 5)]
    assert order[total:] == [-1] * 5
    assert sorted(order[:total]) == list(range(total))
    head, block = np.divmod(order[:total], static.q_blocks)
    sections = head // heads
    assert (np.diff(sections) >= 0).all()
    for section in range(8 // heads):
        assert (np.diff(block[sections == section]) <= 0).all()
