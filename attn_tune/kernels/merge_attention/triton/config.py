"""The knobs of merges."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Knobs, PowerOfTwo

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Knobs):
    """A program merges ``block_rows`` rows; a row is one head of one query."""

    block_rows: Annotated[
        int, PowerOfTwo(1, 256, tried=(1, 2, 4, 8, 16, 32, 64), doc="heads of queries that a program merges")
    ]
    num_warps: Annotated[int, PowerOfTwo(1, 16, tried=(1, 2, 4, 8), doc="warps of 32 threads that share them")]
