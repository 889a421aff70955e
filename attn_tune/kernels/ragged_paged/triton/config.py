"""The knobs of ragged attention in Triton."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import PowerOfTwo, Range
from attn_tune.kernels.lang.triton.tiles import Tile

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"

MOST_PROGRAMS = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Tile):
    """A program owns ``block_q`` rows, queries of all heads of a group, and walks keys ``block_k`` at a time.

    With ``decode_programs`` the first sequences, as long as they have one new token each, are decoded in a launch of
    their own, whose programs share their keys.
    """

    decode_programs: Annotated[
        int | None,
        Range(
            1,
            MOST_PROGRAMS,
            doc="programs of each key head that share the keys of the sequences that decode one token; None treats "
            "them as any other sequence",
        ),
    ] = None
    decode_block_k: Annotated[
        int, PowerOfTwo(16, 512, tried=(32, 64, 128), doc="keys of a tile of the launch that decodes")
    ] = 64

    def conflict(self) -> str | None:
        """Without a launch that decodes it has no tile."""
        if self.decode_programs is None and self.decode_block_k != 64:
            return f"decode_block_k={self.decode_block_k} needs decode_programs; without it leave 64"
        return None
