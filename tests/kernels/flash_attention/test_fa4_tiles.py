"""Lists of tiles for FlashAttention-4: each visible pair lies in a tile that is listed once."""

import numpy as np
import pytest

from attn_tune.kernels.flash_attention._fa4.tiles import Lists, listed
from attn_tune.ops.flash_attention.operands import Operands
from attn_tune.ops.flash_attention.problem import Problem

BATCH = 3
EMPTY = np.zeros((BATCH, 1, 1, 8), np.float32)


def problem(q_len, kv_len, **fields):
    sizes = {"num_q_heads": 1, "num_kv_heads": 1, "head_dim": 8, "v_head_dim": 8}
    return Problem(batch=BATCH, q_len=q_len, kv_len=kv_len, **sizes, **fields)


def drawn(p, seed, kind):
    """Ids and positions: documents in order, padding behind lengths, or anything."""
    rng = np.random.default_rng(seed)
    marks = {}
    for side, length in (("q", p.q_len), ("kv", p.kv_len)):
        if kind == "documents":
            ids = np.sort(rng.integers(0, 6, (BATCH, length)), axis=1)
        elif kind == "lengths":
            ends = rng.integers(0, length + 1, (BATCH, 1)) if side == "kv" else np.full((BATCH, 1), length)
            ids = (np.arange(length) < ends).astype(np.int32)
        else:
            ids = np.repeat(rng.integers(-2, 3, (BATCH, -(-length // 16))), 16, axis=1)[:, :length]
        marks[f"{side}_segments"] = ids.astype(np.int32)
        starts = rng.integers(0, 9, (BATCH, 1))
        positions = np.arange(length) - starts if kind != "anything" else rng.integers(-40, 200, (BATCH, length))
        marks[f"{side}_positions"] = positions.astype(np.int32)
    keep = {"segments": p.has_segments, "positions": p.has_positions}
    return Operands(q=EMPTY, k=EMPTY, v=EMPTY, **{n: a for n, a in marks.items() if keep[n.split("_")[1]]})


def visible(p, operands):
    """Whether a query sees a key [B, T, S], and whether ids and explicit positions alone would let it."""
    marked = np.ones((BATCH, p.q_len, p.kv_len), bool)
    if p.has_segments:
        marked &= operands.q_segments[:, :, None] == operands.kv_segments[:, None]
    if p.has_positions:
        ahead = operands.kv_positions[:, None] - operands.q_positions[:, :, None]
    else:
        ahead = np.broadcast_to(np.arange(p.kv_len) - np.arange(p.q_len)[:, None] - p.offset, marked.shape)
    left, right = p.bounds
    near = np.ones_like(marked)
    if right is not None:
        near &= ahead <= right
    if left is not None:
        near &= ahead >= -left
    return marked & near, marked & near if p.has_positions else marked


@pytest.mark.parametrize("kind", ["documents", "lengths", "anything"])
@pytest.mark.parametrize(
    "fields",
    [
        {"has_segments": True},
        {"has_segments": True, "causal": True},
        {"has_segments": True, "window": (37, 5)},
        {"has_positions": True, "causal": True},
        {"has_positions": True, "has_segments": True, "window": (50, None)},
    ],
    ids=lambda fields: " ".join(fields),
)
@pytest.mark.parametrize(("q_len", "kv_len", "block_q", "block_k"), [(200, 333, 64, 48), (128, 128, 32, 128)])
@pytest.mark.parametrize("by_keys", [False, True])
def test_each_visible_pair_lies_in_one_listed_tile(kind, fields, q_len, kv_len, block_q, block_k, by_keys):
    p = problem(q_len, kv_len, **fields)
    operands = drawn(p, q_len + len(fields), kind)
    lists = Lists(*map(np.asarray, listed(p, operands, block_q, block_k, by_keys=by_keys)))
    seen, unmarked = visible(p, operands)
    met = np.zeros((BATCH, -(-q_len // block_q), -(-kv_len // block_k)), int)
    for counts, tiles, hides_nothing in ((lists.some, lists.some_tiles, False), (lists.all_, lists.all_tiles, True)):
        for (b, row), count in np.ndenumerate(counts):
            chosen = tiles[b, row, :count]
            assert np.all(np.diff(chosen) > 0)
            for column in chosen:
                i, j = (column, row) if by_keys else (row, column)
                met[b, i, j] += 1
                if hides_nothing:
                    assert unmarked[b, i * block_q : (i + 1) * block_q, j * block_k : (j + 1) * block_k].all()
    assert met.max() <= 1
    per_pair = met.repeat(block_q, 1)[:, :q_len].repeat(block_k, 2)[:, :, :kv_len]
    assert np.all(per_pair[seen] == 1)
    if kind == "documents" and p.has_segments and block_k == 48:
        assert met.sum() < 0.5 * met.size
        assert p.has_positions or lists.all_.sum() > 0


def test_no_lists_without_ids_and_positions():
    p = problem(200, 333, causal=True)
    assert listed(p, drawn(p, 0, "documents"), 64, 64) == ()
