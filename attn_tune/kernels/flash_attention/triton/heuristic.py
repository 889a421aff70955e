"""The untuned choice: a table by architecture, head dim and window, made to fit lengths, dtype and shared memory."""

import dataclasses
import functools
import re

from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.kernels.flash_attention.triton.config import (
    BackwardConfig,
    DkvConfig,
    DqConfig,
    ForwardConfig,
)
from attn_tune.kernels.flash_attention.triton.limits import (
    Tile,
    infeasible,
    shared_bytes_at_most,
    shared_limit,
)
from attn_tune.kernels.flash_attention.triton.static import padded
from attn_tune.kernels.flash_attention.untuned import keys_a_row_sees
from attn_tune.runtime.environments import current_environment
from attn_tune.schema.device import Device

# (block_q, block_k, num_warps, num_stages) of forward, dq and dk/dv, by head dim up to; a fifth figure is
# max_registers. Those of sm_90 lose least in the worst case over exhaustive sweeps of causal bf16 shapes of 16k tokens
# on an H200 with Triton 3.6 and with 3.9 (benchmarks/heuristic_regret.py); the others of sm_90 are from races of drawn
# shapes (benchmarks/unseen_shapes.py configs).
_SM90 = {
    # Two blocks of 4 warps on one multiprocessor overlap one's softmax with the other's products.
    64: ((64, 64, 4, 3), (128, 64, 8, 3), (64, 64, 4, 3)),
    128: ((64, 64, 4, 3), (128, 32, 8, 3), (64, 64, 4, 2)),
    256: ((128, 64, 8, 2), (128, 32, 8, 3), (64, 32, 4, 2)),
}
# dk/dv at head dim 128 where heads share keys and no tile is cut: up to 1.1 times as fast as the tile above.
_SM90_SHARED_DKV = (64, 128, 8, 4)
# dk/dv at head dim 64 where no tile is cut and programs are many: three of them on one multiprocessor, 1.02 to 1.05
# times as fast (8x640, 19x1664, and the rows of the pack).
_SM90_WHOLE_DKV = (64, 64, 4, 3, 168)
# dq where tiles are cut, by head dim up to: larger ones take 1.2 to 1.32 times the time (1x2460, 18x1533x1777; 48x669
# at head dim 64). Where all rows fit one of 128 that is faster over many keys (1.2 times at 9x68x3456), half empty.
_SM90_CUT_DQ, _SM90_CUT_LONE_DQ = {64: (64, 32, 4, 3), 128: (64, 64, 4, 2)}, (128, 64, 8, 3)
# dq and dk/dv of few programs a multiprocessor: a program's own latency counts (1.1 to 1.4 times as fast at 1x85, 1x92,
# 1x241 and 1x46x18048); dk/dv only of few keys, whose programs are short.
_SM90_SMALL = {1: (64, 32, 4, 3), 2: (64, 64, 4, 3)}
_FEW_WAVES, _FEW_KEYS = {1: 2, 2: 1}, 512
# Of packed documents a few rows see few keys: 1.2 times as fast as a deeper pipeline (36x4x7176).
_SM90_FEW_ROWS_OF_DOCUMENTS, _FEW_ROWS = (16, 16, 2, 2), 16
# Where a row sees at most _NARROW keys, or packed documents, what larger tiles compute is mostly masked.
_SM90_NARROW = {
    64: ((64, 32, 4, 3), (64, 32, 4, 3), (64, 64, 4, 3)),
    128: ((64, 64, 4, 3), (64, 64, 4, 2), (64, 64, 4, 2)),
    256: _SM90[256],
}
_NARROW = 1024
# dk/dv of lengths that are no multiple of 64, where no heads share keys and nothing or little is masked: within 7 % of
# the best of 200 configs at 32x197 and 16x577, where the tile above loses 30 %.
_SM90_RAGGED_DKV = (32, 64, 4, 4)
# Not measured: what did well on sm_90 before the window and the compiler were told apart.
_SM100 = {
    64: ((128, 64, 4, 3), (128, 64, 4, 3), (32, 64, 4, 4)),
    128: ((64, 64, 4, 3), (128, 32, 8, 3), (64, 128, 8, 3)),
    256: ((128, 32, 8, 3), (128, 32, 8, 3), (64, 32, 4, 3)),
}
# Before Triton 3.9 the forward's 64x64 is 15 to 20 % slower at head dim 128 than this; since then it is the fastest.
_SM90_FORWARD_BEFORE = {128: (128, 64, 8, 2, 128)}
_BEFORE = (3, 9)
# Multiprocessors, where the device does not say.
_UNITS = 132
_SM80 = {
    64: ((128, 64, 4, 3), (64, 64, 4, 3), (64, 64, 4, 2)),
    128: ((128, 64, 8, 3), (64, 64, 8, 2), (64, 64, 8, 2)),
    256: ((64, 32, 4, 2), (64, 32, 8, 2), (32, 32, 4, 2)),
}
# 99 KB of shared memory: consumer Ampere, Ada and Blackwell.
_SMALL = {
    64: ((128, 64, 4, 2), (64, 64, 4, 2), (64, 64, 4, 2)),
    128: ((64, 64, 4, 2), (64, 64, 8, 2), (64, 64, 8, 2)),
    256: ((64, 32, 4, 2), (32, 32, 4, 2), (32, 32, 4, 2)),
}
_TABLES = {80: _SM80, 87: _SM80, 90: _SM90, 100: _SM100, 103: _SM100, 110: _SM100}

# Dropout bits, bias and tanh need registers of their own: with 64 pairs a thread the forward spills 432 bytes at H64.
_MOST_FEATURE_PAIRS = 32


def forward_heuristic(problem: Problem, device: Device) -> ForwardConfig:
    """The forward's untuned config."""
    return _fitted(problem, device, ForwardConfig, 0)


def backward_heuristic(problem: Problem, device: Device) -> BackwardConfig:
    """The backward's untuned config."""
    return BackwardConfig(
        dq=_fitted(problem, device, DqConfig, 1), dkv=_fitted(problem, device, DkvConfig, 2)
    )


def block_cap(length: int) -> int:
    """The largest block worth having for a length: the power of two, at least 16, that covers it."""
    return max(16, 1 << (length - 1).bit_length())


def _fitted[T: (ForwardConfig, DqConfig, DkvConfig)](
    problem: Problem, device: Device, cls: type[T], column: int
) -> T:
    block_q, block_k, num_warps, num_stages, *cap = _known(problem, device, column)
    tile = known = cls(
        block_q=min(block_q, block_cap(problem.q_len)),
        block_k=min(block_k, block_cap(problem.kv_len)),
        num_warps=num_warps,
        num_stages=num_stages,
    )
    if isinstance(tile, DqConfig) and tile.block_q < block_q:
        tile = _with_fewer_rows(tile, block_q)
    if (
        isinstance(tile, DkvConfig)
        and (fill := _filled_block(problem, tile.block_q)) < tile.block_q
    ):
        # Small tiles want more of them under way: three stages are 1.12 times as fast as two at 9x68x3456.
        tile = dataclasses.replace(tile, block_q=fill, num_stages=max(3, num_stages))
    if problem.dtype == "float32":
        # Three passes of tf32 hold three tiles where one pass holds one: with the owned block whole, the forward at H64
        # spills 576 bytes on sm_100 and dk/dv at H256 1.5 KB.
        tile = _halved(tile)
        owned = "block_k" if isinstance(tile, DkvConfig) else "block_q"
        tile = dataclasses.replace(tile, **{owned: max(16, _owned(tile) // 2)})
    if _has_features(problem) and _pairs_per_thread(tile) > _MOST_FEATURE_PAIRS:
        tile = dataclasses.replace(tile, num_warps=2 * tile.num_warps)
    while _owned(tile) < 8 * tile.num_warps:
        tile = dataclasses.replace(tile, num_warps=tile.num_warps // 2)
    while not _fits(problem, device, tile) and _smaller(tile) != tile:
        tile = _smaller(tile)
    # Another tile has other needs.
    if cap and tile == known and (tile.block_q, tile.block_k) == (block_q, block_k):
        tile = dataclasses.replace(tile, max_registers=cap[0])
    return tile


def _with_fewer_rows(tile: DqConfig, block_q: int) -> DqConfig:
    """A tile that was cut from ``block_q`` rows to those that there are, with warps for these and enough keys.

    1.2 times as fast at 128x60 (four warps for eight) and 16x17x698 (64 keys for 32).
    """
    warps = max(4, tile.num_warps * tile.block_q // block_q)
    keys = 64 if tile.block_q <= 32 and tile.block_k == 32 else tile.block_k
    return dataclasses.replace(tile, num_warps=min(tile.num_warps, warps), block_k=keys)


def _filled_block(problem: Problem, block: int) -> int:
    """The largest block of queries up to ``block`` whose blocks are three quarters full, or the one that fills most.

    68 queries take two blocks of 64 or five of 16: with those the backward is 1.18 times as fast (9x68x3456). Over few
    keys so small a block only makes a program's loop longer (32x37).
    """
    least = 16 if problem.kv_len > _FEW_KEYS else 32
    blocks = [size for size in (128, 64, 32, 16) if least <= size <= block] or [block]
    fill = {size: problem.q_len / (size * -(-problem.q_len // size)) for size in blocks}
    return next((size for size in blocks if fill[size] >= 0.75), max(blocks, key=fill.__getitem__))


def _known(problem: Problem, device: Device, column: int) -> tuple[int, ...]:
    """The row of the tables for one launch."""
    capability = device.compute_capability or 0
    width = max(padded(problem.head_dim), padded(problem.v_head_dim))
    table = _TABLES.get(capability, _SMALL)
    plain_forward = column == 0 and not _has_features(problem) and _fills(problem, device)
    # Padding too, in the backward: 1.15 times as fast at head dim 128 (18x1533x1777).
    is_packed = problem.has_segments and (column > 0 or not problem.has_lengths)
    is_narrow = is_packed or keys_a_row_sees(problem) <= _NARROW
    if table is _SM90:
        if column > 0 and width <= 128 and (row := _known_cut_or_small(problem, device, column)):
            return row
        if column == 0 and is_packed and problem.q_len <= _FEW_ROWS:
            return _SM90_FEW_ROWS_OF_DOCUMENTS
        if is_narrow:
            table = _SM90_NARROW
        elif plain_forward and _is_compiled_as_before():
            return _SM90_FORWARD_BEFORE.get(width) or _row(table, width)[0]
        elif column == 2 and not _is_cut(problem):
            if width == 128 and problem.group_size > 1:
                return _SM90_SHARED_DKV
            if width <= 64 and _waves(problem, device, column) > 2:
                return _SM90_WHOLE_DKV
    return _row(table, width)[column]


def _known_cut_or_small(problem: Problem, device: Device, column: int) -> tuple[int, ...] | None:
    """The row of a backward's launch on sm_90 that has few programs or whose last tiles are cut; None for others."""
    is_dq = column == 1
    waves = _waves(problem, device, column)
    has_few_keys = problem.kv_len <= _FEW_KEYS
    if is_dq and _is_cut(problem) and 64 < problem.q_len <= 128 and not has_few_keys:
        return _SM90_CUT_LONE_DQ
    if waves <= _FEW_WAVES[column] and (is_dq or has_few_keys):
        return _SM90_SMALL[column]
    if not _is_cut(problem):
        return None
    width = max(padded(problem.head_dim), padded(problem.v_head_dim))
    if is_dq:
        return _row(_SM90_CUT_DQ, width)
    is_plain = problem.bounds == (None, None) or has_few_keys
    shares_nothing = width <= 64 and problem.group_size == 1
    return _SM90_RAGGED_DKV if shares_nothing and is_plain and waves > 2 else None


def _waves(problem: Problem, device: Device, column: int) -> float:
    """Programs a multiprocessor, of dq by 64 rows or of dk/dv by 64 keys."""
    heads, length = (
        (problem.num_q_heads, problem.q_len)
        if column == 1
        else (problem.num_kv_heads, problem.kv_len)
    )
    return problem.batch * heads * -(-length // 64) / (device.units or _UNITS)


def _is_cut(problem: Problem) -> bool:
    """Whether the last tile of 64 rows or keys is not full."""
    return problem.q_len % 64 != 0 or problem.kv_len % 64 != 0


def _fills(problem: Problem, device: Device) -> bool:
    """Whether tiles of 128 rows are enough for two on each multiprocessor.

    At 128 queries over 8k keys they are not, and take 2.6 times as long as tiles of 64.
    """
    tiles = problem.batch * problem.num_q_heads * -(-problem.q_len // 128)
    return tiles >= 2 * (device.units or _UNITS)


def _row[V](table: dict[int, V], width: int) -> V:
    return next(table[bound] for bound in sorted(table) if width <= bound)


@functools.cache
def _is_compiled_as_before() -> bool:
    """An older Triton is installed."""
    found = re.match(r"(\d+)\.(\d+)", current_environment().triton)
    return found is not None and (int(found[1]), int(found[2])) < _BEFORE


def _has_features(problem: Problem) -> bool:
    """Something beside causal and window touches every pair of a tile."""
    return (
        problem.bias_dims is not None
        or problem.mask_dims is not None
        or problem.soft_cap is not None
        or problem.dropout_rate > 0
    )


def _pairs_per_thread(tile: Tile) -> int:
    return tile.block_q * tile.block_k // (32 * tile.num_warps)


def _fits(problem: Problem, device: Device, tile: Tile) -> bool:
    enough = shared_bytes_at_most(problem, device, tile) <= shared_limit(device)
    return enough and infeasible(problem, device, tile) is None


def _smaller[T: Tile](tile: T) -> T:
    """One step down: fewer stages, then a shorter walked block, then a shorter owned one.

    Two stages are the least: without a pipeline ``mma.sync`` takes more shared memory, not less.
    """
    if tile.num_stages > 2:
        return dataclasses.replace(tile, num_stages=tile.num_stages - 1)
    return _halved(tile)


def _halved[T: Tile](tile: T) -> T:
    walked, owned = (
        ("block_q", "block_k") if isinstance(tile, DkvConfig) else ("block_k", "block_q")
    )
    name = walked if getattr(tile, walked) > 16 else owned
    return dataclasses.replace(tile, **{name: max(16, getattr(tile, name) // 2)})


def _owned(tile: Tile) -> int:
    return tile.block_k if isinstance(tile, DkvConfig) else tile.block_q
