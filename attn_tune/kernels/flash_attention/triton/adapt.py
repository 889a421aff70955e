"""Configs of another problem's lengths, made to fit the lengths of this one."""

from attn_tune.kernels.flash_attention.triton.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.lang.triton.tiles import cut_tile
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device


def adapt_forward(tuned: Problem, problem: Problem, device: Device, config: ForwardConfig) -> ForwardConfig:
    """The tile, cut to the lengths."""
    return cut_tile(config, problem.q_len, problem.kv_len)


def adapt_backward(tuned: Problem, problem: Problem, device: Device, config: BackwardConfig) -> BackwardConfig:
    """Both tiles, cut to the lengths."""
    return BackwardConfig(
        dq=cut_tile(config.dq, problem.q_len, problem.kv_len),
        dkv=cut_tile(config.dkv, problem.q_len, problem.kv_len),
    )
