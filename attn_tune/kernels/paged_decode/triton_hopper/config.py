"""The knobs of decoding over latents for Hopper."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from attn_tune.kernels.knobs import Knobs, PowerOfTwo, Range

# Four warps that multiply are the rows of one Hopper matrix instruction; two groups of them share the columns.
WARPS, GROUPS, ROWS = 4, 2, 64
KEYS = 64
MOST_PROGRAMS = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Knobs):
    """A program owns 64 rows, queries of all heads, and walks keys 64 at a time.

    The blocks of keys of all sequences are one line, which ``num_programs`` share equally, by the lengths that they
    read themselves; a second launch combines the parts of sequences that were cut.

    Attributes:
      block_q, block_k, cluster: the tile, and that no program of another shares its keys; no knobs.
    """

    block_q: ClassVar[int] = ROWS
    block_k: ClassVar[int] = KEYS
    cluster: ClassVar[None] = None

    num_programs: Annotated[
        int, Range(1, MOST_PROGRAMS, doc="programs that share the keys of all sequences, for each tile of rows")
    ]
    num_stages: Annotated[int, Range(2, 8, tried=(2, 3, 4), doc="tiles of keys in shared memory")] = 2
    least_blocks: Annotated[
        int,
        PowerOfTwo(1, 64, tried=(1, 2, 4), doc="blocks of keys that a program has at least; fewer programs work then"),
    ] = 1
