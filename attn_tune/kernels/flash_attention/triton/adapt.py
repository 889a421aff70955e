"""Configs of another problem's lengths, made to fit the lengths of this one."""

import dataclasses

from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.kernels.flash_attention.triton.config import (
    BackwardConfig,
    DkvConfig,
    ForwardConfig,
)
from attn_tune.kernels.flash_attention.triton.heuristic import block_cap
from attn_tune.kernels.flash_attention.triton.limits import Tile
from attn_tune.schema.device import Device

# Rows or keys of the owned side that one warp has at least, as in the untuned choice.
_FEWEST_A_WARP = 8


def adapt_forward(
    tuned: Problem, problem: Problem, device: Device, config: ForwardConfig
) -> ForwardConfig:
    """The tile, cut to the lengths."""
    return cut_tile(config, problem.q_len, problem.kv_len)


def adapt_backward(
    tuned: Problem, problem: Problem, device: Device, config: BackwardConfig
) -> BackwardConfig:
    """Both tiles, cut to the lengths."""
    return BackwardConfig(
        dq=cut_tile(config.dq, problem.q_len, problem.kv_len),
        dkv=cut_tile(config.dkv, problem.q_len, problem.kv_len),
    )


def cut_tile[T: Tile](tile: T, rows: int, keys: int) -> T:
    """``tile`` with no block longer than what covers ``rows`` and ``keys``; a shorter owned block has fewer warps."""
    cut = dataclasses.replace(
        tile,
        block_q=min(tile.block_q, block_cap(rows)),
        block_k=min(tile.block_k, block_cap(keys)),
    )
    owned = "block_k" if isinstance(tile, DkvConfig) else "block_q"
    if getattr(cut, owned) < getattr(tile, owned):
        most = max(1, getattr(cut, owned) // _FEWEST_A_WARP)
        cut = dataclasses.replace(cut, num_warps=min(tile.num_warps, most))
    return cut
