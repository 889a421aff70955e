"""Sizes of tiles of two groups of warps that attend to latents for 64 query rows. Importing it loads no triton."""

from typing import Annotated

from attn_tune.kernels.knobs import Range

# Four warps that multiply are the rows of one Hopper matrix instruction; two groups of them share the columns.
WARPS, GROUPS, ROWS = 4, 2, 64
# Keys of a tile, whose logits one of the groups computes.
KEYS = 64
# Columns of a row of shared memory that the widest swizzle takes, in 16 bits.
PANEL = 64


def shared_bytes(width: int, rest: int, stages: int) -> int:
    """Bytes of shared memory of queries, of ``stages`` tiles of keys, and of weights.

    ``width`` columns are keys and values; ``rest`` are behind them, 0 or a panel, in whose bytes weights are passed.
    """
    weights = 0 if rest else stages * ROWS * KEYS
    return 2 * ((ROWS + stages * KEYS) * (width + rest) + weights) + _SET_ASIDE


# Set aside for barriers and for what else passes between warps.
_SET_ASIDE = 2048

# The knob of kernels whose groups of warps take turns with tiles.
HalvesAhead = Annotated[
    int,
    Range(
        0,
        2,
        tried=(0, 1, 2),
        doc="halves of a tile's columns whose products start before the other group's weights have come",
    ),
]
