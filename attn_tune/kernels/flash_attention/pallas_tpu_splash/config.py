"""The configs of splash attention: one launch forward, two backward."""

from dataclasses import dataclass

from attn_tune.kernels.flash_attention._splash.config import DkvLaunch, DqLaunch, ForwardLaunch


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(ForwardLaunch):
    """The forward's only launch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig:
    """The backward: its two launches, searched one by one."""

    dq: DqLaunch
    dkv: DkvLaunch
