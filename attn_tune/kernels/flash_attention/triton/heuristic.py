"""The untuned choice: the config that should take least, or that of a table, made to fit lengths, dtype and memory."""

import dataclasses
import functools
import re

from attn_tune.devices.environments import current_environment
from attn_tune.kernels.flash_attention import costs
from attn_tune.kernels.flash_attention._triton.limits import fits
from attn_tune.kernels.flash_attention.triton.config import (
    BackwardConfig,
    DkvConfig,
    DqConfig,
    ForwardConfig,
)
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.tiles import Tile, block_cap, fitted, halved
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

# (block_q, block_k, num_warps, num_stages) of forward, dq and dk/dv, by head dim up to; a fifth figure is
# max_registers. Those of sm_90 are for what ``costs.py`` has no figures for: they lose least in the worst case over
# exhaustive sweeps of causal bf16 shapes of 16k tokens on an H200 (benchmarks/heuristic_regret.py).
_SM90 = {
    # Two blocks of 4 warps on one multiprocessor overlap one's softmax with the other's products.
    64: ((64, 64, 4, 3), (128, 64, 8, 3), (64, 64, 4, 3)),
    128: ((64, 64, 4, 3), (128, 32, 8, 3), (64, 64, 4, 2)),
    256: ((128, 64, 8, 2), (128, 32, 8, 3), (64, 32, 4, 2)),
}
# The launch of a column.
_LAUNCHES = ("triton/fwd", "triton/dq", "triton/dkv")
# A forward of few queries reads keys and values once: two warps a tile, a deeper pipeline where it must find them.
_FEW_QUERIES, _FEW_QUERIES_OF_DOCUMENTS = (16, 64, 2, 2), (16, 64, 2, 3)
# Not measured: what did well on sm_90 before the window and the compiler were told apart.
_SM100 = {
    64: ((128, 64, 4, 3), (128, 64, 4, 3), (32, 64, 4, 4)),
    128: ((64, 64, 4, 3), (128, 32, 8, 3), (64, 128, 8, 3)),
    256: ((128, 32, 8, 3), (128, 32, 8, 3), (64, 32, 4, 3)),
}
# Before Triton 3.9 the forward's 64x64 is 15 to 20 % slower at head dim 128 than this; since then it is the fastest.
_SM90_FORWARD_BEFORE = {128: (128, 64, 8, 2, 128)}
_BEFORE = (3, 9)
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
    return BackwardConfig(dq=_fitted(problem, device, DqConfig, 1), dkv=_fitted(problem, device, DkvConfig, 2))


def _fitted[T: (ForwardConfig, DqConfig, DkvConfig)](problem: Problem, device: Device, cls: type[T], column: int) -> T:
    block_q, block_k, num_warps, num_stages, *cap = _known(problem, device, column)
    tile = known = cls(
        block_q=min(block_q, block_cap(problem.q_len)),
        block_k=min(block_k, block_cap(problem.kv_len)),
        num_warps=num_warps,
        num_stages=num_stages,
    )
    if isinstance(tile, DqConfig) and tile.block_q < block_q:
        tile = _with_fewer_rows(tile, block_q)
    if problem.dtype == "float32":
        # Three passes of tf32 hold three tiles where one pass holds one: with the owned block whole, the forward at H64
        # spills 576 bytes on sm_100 and dk/dv at H256 1.5 KB.
        tile = halved(tile)
        owned = "block_k" if tile.owns_keys else "block_q"
        tile = dataclasses.replace(tile, **{owned: max(16, tile.owned // 2)})
    if _has_features(problem) and not _has_figures(problem, device) and _pairs_per_thread(tile) > _MOST_FEATURE_PAIRS:
        tile = dataclasses.replace(tile, num_warps=2 * tile.num_warps)
    while tile.owned < 8 * tile.num_warps:
        tile = dataclasses.replace(tile, num_warps=tile.num_warps // 2)
    tile = fitted(tile, functools.partial(fits, problem, device))
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


def _known(problem: Problem, device: Device, column: int) -> tuple[int, ...]:
    """The row for one launch: that of the tables, or the one that should take least."""
    if _has_figures(problem, device):
        return least(problem, device, column)[1]
    table = _TABLES.get(device.compute_capability or 0, _SMALL)
    found = max(padded(problem.head_dim), padded(problem.v_head_dim))
    is_plain_forward = table is _SM90 and column == 0 and not _has_features(problem)
    if is_plain_forward and _is_of_older_triton(problem, device):
        return _SM90_FORWARD_BEFORE.get(found) or _row(table, found)[0]
    return _row(table, found)[column]


def _has_figures(problem: Problem, device: Device) -> bool:
    """Whether ``costs.py`` chooses."""
    is_known = costs.known(device) and costs.modelled(problem)
    return is_known and not _is_of_older_triton(problem, device)


def _is_of_older_triton(problem: Problem, device: Device) -> bool:
    """Whether the figures, of what a newer Triton compiled, say less than the tables: of many large tiles."""
    return _is_compiled_as_before() and _fills(problem, device) and not costs.is_narrow(problem)


def least(problem: Problem, device: Device, column: int) -> tuple[float, tuple[int, ...]]:
    """Microseconds and row of the launch of a column that should take least; 0 is the forward, 1 dq and 2 dk/dv."""
    if column == 0 and costs.has_few_queries(problem):
        is_packed = costs.has_documents(problem)
        return 0.0, _FEW_QUERIES_OF_DOCUMENTS if is_packed else _FEW_QUERIES
    name = _LAUNCHES[column]
    return min(
        (costs.launch_us(costs.Launch(name, row), problem, device), row)
        for row in costs.choices(name, problem)
        if _is_of_use(problem, row, column)
    )


def _is_of_use(problem: Problem, row: tuple[int, ...], column: int) -> bool:
    """Whether a row is for problems like this one.

    Tiles of fewer rows are for fewer rows; wide tiles of keys are ahead where heads share keys and no tile is cut; and
    what a cap of registers spills is more where tiles are cut, or logits capped softly, than the figures know.
    """
    block_q, block_k, *_ = row
    if column == 0 and (block_q < 64) != (problem.q_len <= 32):
        return False
    is_whole = problem.q_len % block_q == 0 and problem.kv_len % block_k == 0
    if column == 2 and block_k > 64:
        return is_whole and problem.group_size > 1
    if column == 2 and len(row) > 4 and block_q == block_k:
        return is_whole and problem.soft_cap is None
    return True


def _fills(problem: Problem, device: Device) -> bool:
    """Whether tiles of 128 rows are enough for two on each multiprocessor.

    At 128 queries over 8k keys they are not, and take 2.6 times as long as tiles of 64.
    """
    tiles = problem.batch * problem.num_q_heads * -(-problem.q_len // 128)
    return tiles >= 2 * costs.units(device)


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
