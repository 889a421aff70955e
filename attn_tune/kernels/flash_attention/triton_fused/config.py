"""The knobs of the fused backward: one launch, one tile."""

from dataclasses import dataclass

from attn_tune.kernels.flash_attention._triton.config import DkvConfig
from attn_tune.schema.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig(DkvConfig):
    """A program owns ``block_k`` keys and walks the rows ``block_q`` at a time, for all three gradients.

    Attributes:
      transposed_dq: the share of dq is computed as ``[block_h, block_q]``, from the transposed keys, not as
        ``[block_q, block_h]``, from the transposed gradient of the logits.
    """

    transposed_dq: bool

    def __post_init__(self):
        DkvConfig.__post_init__(self)
        if not isinstance(self.transposed_dq, bool):
            raise UsageError(f"transposed_dq must be true or false, got {self.transposed_dq!r}")
