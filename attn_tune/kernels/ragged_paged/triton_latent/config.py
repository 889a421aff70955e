"""The knobs of ragged attention over latents in Triton."""

from dataclasses import dataclass

from attn_tune.kernels.lang.triton.tiles import Tile
from attn_tune.kernels.ragged_paged._triton.config import (
    DECODE_BLOCK_K,
    DecodeBlock,
    DecodePrograms,
    decoding_conflict,
)

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Tile):
    """A program owns ``block_q`` rows of a sequence, its queries and their heads in order, and walks ``block_k`` keys.

    With ``decode_programs`` the first sequences, as long as they have one new token each, are decoded in a launch of
    their own, whose programs share their keys.
    """

    decode_programs: DecodePrograms = None
    decode_block_k: DecodeBlock = DECODE_BLOCK_K

    def conflict(self) -> str | None:
        """Without a launch that decodes it has no tile."""
        return decoding_conflict(self)
