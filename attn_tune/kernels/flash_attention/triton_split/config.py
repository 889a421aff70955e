"""The knobs of the forward that splits the keys."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.flash_attention._triton import config
from attn_tune.kernels.knobs import PowerOfTwo

MOST_SPLITS = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(config.ForwardConfig):
    """A program owns ``block_q`` rows of a group and walks one of ``num_splits`` parts of their keys.

    The query heads that share keys are rows side by side.
    """

    num_splits: Annotated[
        int,
        PowerOfTwo(
            1,
            MOST_SPLITS,
            doc="programs that share the keys of one tile; with 1 there is no second launch",
        ),
    ]
