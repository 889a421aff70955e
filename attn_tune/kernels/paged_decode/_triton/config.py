"""The knobs of decoding over a cache."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import PowerOfTwo, Range
from attn_tune.kernels.lang.triton.tiles import Tile

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"

MOST_PROGRAMS = 4096
# Rows of a tile that is the narrow operand of its products.
NARROW = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Tile):
    """A program owns ``block_q`` rows of a group, the queries of all its heads, and walks keys ``block_k`` at a time.

    With ``num_programs`` the blocks of keys of all sequences are one line, which that many programs share equally, by
    the lengths that they read themselves; a second launch combines the parts of sequences that were cut. With
    ``cluster`` so many programs share the keys of each sequence, and combine its parts in the same launch. Without
    both, each sequence has one program.
    """

    block_q: Annotated[
        int,
        PowerOfTwo(
            NARROW,
            512,
            tried=(8, 16, 32, 64),
            doc="query rows of a tile; 8 are columns of the products, whose rows are keys and values",
        ),
    ]
    num_programs: Annotated[
        int | None,
        Range(
            1,
            MOST_PROGRAMS,
            doc="programs that share the keys of all sequences, for each key head and tile of rows; None gives each "
            "sequence a program of its own",
        ),
    ] = None
    least_blocks: Annotated[
        int,
        PowerOfTwo(1, 64, tried=(1, 2, 4), doc="blocks of keys that a program has at least; fewer programs work then"),
    ] = 1

    cluster: Annotated[
        int | None,
        PowerOfTwo(
            2,
            8,
            tried=(2, 4, 8),
            doc="programs that share the keys of one sequence and combine their parts in the same launch (Hopper and "
            "later)",
        ),
    ] = None

    def conflict(self) -> str | None:
        """Keys are shared in one way, and without shared keys there is nothing to bound."""
        if self.cluster is not None and self.num_programs is not None:
            return f"cluster={self.cluster} and num_programs={self.num_programs} both share keys; leave one None"
        if self.num_programs is None and self.least_blocks != 1:
            return f"least_blocks={self.least_blocks} needs num_programs; without it leave 1"
        return None
