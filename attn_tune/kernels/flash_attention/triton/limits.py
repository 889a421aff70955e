"""Configs of whole directions that cannot fit."""

from attn_tune.kernels.flash_attention._triton import limits
from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.kernels.flash_attention.triton.config import BackwardConfig
from attn_tune.kernels.lang.triton.tiles import Tile
from attn_tune.schema.device import Device


def infeasible(problem: Problem, device: Device, config: Tile | BackwardConfig) -> str | None:
    """Why a whole config or one part of it cannot fit the device, or None. Never refuses what compiles and fits."""
    if isinstance(config, Tile):
        return limits.infeasible(problem, device, config)
    for part, tile in (("dq", config.dq), ("dkv", config.dkv)):
        if reason := limits.infeasible(problem, device, tile):
            return f"{part}: {reason}"
    return None
