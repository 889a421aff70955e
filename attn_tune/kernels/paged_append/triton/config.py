"""The knobs of updates of a cache."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Knobs, PowerOfTwo

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Knobs):
    """A program writes ``block_rows`` rows; a row is the key and the value of one token and head."""

    block_rows: Annotated[
        int, PowerOfTwo(1, 256, tried=(1, 2, 4, 8, 16, 32, 64), doc="keys and values of one head that a program writes")
    ]
    num_warps: Annotated[int, PowerOfTwo(1, 16, tried=(1, 2, 4, 8), doc="warps of 32 threads that share them")]
