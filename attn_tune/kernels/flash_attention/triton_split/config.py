"""The knobs of the forward that splits the keys."""

from dataclasses import dataclass

from attn_tune.kernels.flash_attention._triton import config
from attn_tune.schema.errors import UsageError

MOST_SPLITS = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(config.ForwardConfig):
    """A program owns ``block_q`` rows of a group and walks one of ``num_splits`` parts of their keys.

    Attributes:
      block_q: rows of a tile; the query heads that share keys are rows side by side.
      num_splits: programs that share the keys of one tile. With 1 there is no second launch.

    Raises:
      UsageError: a knob is not a power of two in its range.
    """

    num_splits: int

    def __post_init__(self):
        config.ForwardConfig.__post_init__(self)
        n = self.num_splits
        if not isinstance(n, int) or n & (n - 1) or not 1 <= n <= MOST_SPLITS:
            raise UsageError(
                f"num_splits must be a power of two between 1 and {MOST_SPLITS}, got {n!r}"
            )
