"""The knobs of the launch that decodes the first sequences of a ragged call, and of one of tiles beside it."""

from dataclasses import dataclass
from typing import Annotated, Protocol

from attn_tune.kernels.knobs import PowerOfTwo, Range
from attn_tune.kernels.lang.triton.tiles import Tile

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"

MOST_PROGRAMS = 4096
DECODE_BLOCK_K = 64

DecodePrograms = Annotated[
    int | None,
    Range(
        1,
        MOST_PROGRAMS,
        doc="programs of each key head that share the keys of the sequences that decode one token; None treats "
        "them as any other sequence",
    ),
]
DecodeBlock = Annotated[int, PowerOfTwo(16, 512, tried=(32, 64, 128), doc="keys of a tile of the launch that decodes")]


class Decoding(Protocol):
    """A config with the knobs of that launch."""

    @property
    def decode_programs(self) -> int | None: ...
    @property
    def decode_block_k(self) -> int: ...


def decoding_conflict(config: Decoding) -> str | None:
    """The reason that these knobs cannot go together, or None: without a launch that decodes it has no tile."""
    if config.decode_programs is None and config.decode_block_k != DECODE_BLOCK_K:
        return f"decode_block_k={config.decode_block_k} needs decode_programs; without it leave {DECODE_BLOCK_K}"
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class TileConfig(Tile):
    """A program owns ``block_q`` rows, queries of all heads of a group, and walks keys ``block_k`` at a time.

    With ``decode_programs`` the first sequences, as long as they have one new token each, are decoded in a launch of
    their own, whose programs share their keys.
    """

    decode_programs: DecodePrograms = None
    decode_block_k: DecodeBlock = DECODE_BLOCK_K

    def conflict(self) -> str | None:
        """Without a launch that decodes it has no tile."""
        return decoding_conflict(self)
