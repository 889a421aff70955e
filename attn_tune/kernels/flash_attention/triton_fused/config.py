"""The knobs of the fused backward: one launch, one tile."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.flash_attention._triton.config import DkvConfig
from attn_tune.kernels.knobs import Flag


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig(DkvConfig):
    """A program owns ``block_k`` keys and walks the rows ``block_q`` at a time, for all three gradients."""

    transposed_dq: Annotated[
        bool,
        Flag(
            doc="the share of dq is computed as `[block_h, block_q]`, from the transposed keys, not as "
            "`[block_q, block_h]`, from the transposed gradient of the logits"
        ),
    ]
