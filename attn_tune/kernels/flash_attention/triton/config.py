"""The knobs of the Triton flash attention kernels: one config per launch."""

from dataclasses import dataclass

from attn_tune.kernels.flash_attention._triton.config import DkvConfig, DqConfig, ForwardConfig

__all__ = ["BackwardConfig", "DkvConfig", "DqConfig", "ForwardConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig:
    """The backward: its two launches, searched one by one."""

    dq: DqConfig
    dkv: DkvConfig
