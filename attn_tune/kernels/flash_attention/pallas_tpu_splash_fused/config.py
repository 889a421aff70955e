"""The config of the fused backward of splash attention: one launch."""

from dataclasses import dataclass

from attn_tune.kernels.flash_attention._splash.config import FusedLaunch


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig(FusedLaunch):
    """The backward's only launch."""
