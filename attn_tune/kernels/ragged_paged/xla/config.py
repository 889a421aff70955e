"""The knobs of ragged attention in plain JAX."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Knobs, PowerOfTwo

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Knobs):
    """``tiles`` tiles of ``block_q`` queries of a sequence walk their keys together, ``step`` at a time."""

    block_q: Annotated[int, PowerOfTwo(1, 2**14, doc="queries of one sequence in a tile")]
    tiles: Annotated[int, PowerOfTwo(1, 2**14, doc="tiles that walk their keys together")]
    step: Annotated[int, PowerOfTwo(1, 2**20, doc="keys of every tile that are gathered at a time")]
