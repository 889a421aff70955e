"""The knobs of decoding over latents for Hopper."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Knobs, PowerOfTwo, Range
from attn_tune.kernels.lang.gluon.latents import HalvesAhead
from attn_tune.kernels.paged_decode._triton.config import MOST_PROGRAMS


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Knobs):
    """A program owns 64 rows, queries of all heads, and walks keys 64 at a time.

    The blocks of keys of all sequences are one line, which ``num_programs`` share equally, by the lengths that they
    read themselves; a second launch combines the parts of sequences that were cut.
    """

    num_programs: Annotated[
        int, Range(1, MOST_PROGRAMS, doc="programs that share the keys of all sequences, for each tile of rows")
    ]
    num_stages: Annotated[int, Range(2, 8, tried=(2, 3, 4), doc="tiles of keys in shared memory")] = 2
    least_blocks: Annotated[
        int,
        PowerOfTwo(1, 64, tried=(1, 2, 4), doc="blocks of keys that a program has at least; fewer programs work then"),
    ] = 1
    halves_ahead: HalvesAhead = 0
