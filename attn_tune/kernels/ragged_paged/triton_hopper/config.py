"""The knobs of ragged attention for Hopper."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Choice, Flag, Knobs, Range
from attn_tune.kernels.ragged_paged._triton.config import (
    DECODE_BLOCK_K,
    DecodeBlock,
    DecodePrograms,
    decoding_conflict,
)

# A group of warps that multiplies: four warps, and the rows of one Hopper matrix instruction.
WARPS, ROWS = 4, 64
# Registers a thread of the four warps that widen codes.
WIDENING_REGISTERS = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Knobs):
    """A program owns rows, queries of all heads of a group, 64 for each of its ``consumers``, and walks keys.

    With ``decode_programs`` the first sequences, as long as they have one new token each, are decoded in a launch of
    their own, whose programs share their keys.
    """

    block_k: Annotated[int, Choice((32, 64, 128, 256), tried=(64, 128), doc="keys of a tile")]
    num_stages: Annotated[int, Range(2, 8, tried=(2, 3, 4), doc="tiles of keys, and of values, in shared memory")]
    num_programs: Annotated[int, Range(1, 2**16, doc="programs that share all tiles of rows")]
    heads_per_section: Annotated[
        int,
        Range(
            1,
            2**16,
            doc="key heads that are worked on together: more of them balance the work, fewer of them stay in the L2 "
            "cache",
        ),
    ]
    consumers: Annotated[
        int, Choice((1, 2, 3), tried=(1, 2), doc="groups of four warps that multiply, each 64 rows")
    ] = 2
    ping_pong: Annotated[
        bool,
        Flag(doc="two groups of warps start their products in turns: one's softmax meets the other's products"),
    ] = False
    copying_registers: Annotated[
        int, Choice((24, 40, 56), tried=(24, 40), doc="registers a thread of the warp that copies; the rest multiplies")
    ] = 24
    decode_programs: DecodePrograms = None
    decode_block_k: DecodeBlock = DECODE_BLOCK_K

    @property
    def block_q(self) -> int:
        """Rows of one tile: queries times the heads that share keys."""
        return ROWS * self.consumers

    def multiplying_registers(self, *, has_codes: bool) -> int:
        """Registers a thread of the warps that multiply: what the others leave of 64 K.

        These are the four warps around the copying one and, where the cache ``has_codes``, four that widen them.
        """
        threads = 128 * self.consumers
        left = 65536 - 128 * (self.copying_registers + (WIDENING_REGISTERS if has_codes else 0))
        return min(240, left // threads // 8 * 8)

    def launch_registers(self, *, has_codes: bool) -> int:
        """Registers that every thread starts with: those of 64 K in equal parts."""
        return 65536 // (128 * (self.consumers + 1 + has_codes)) // 8 * 8

    def conflict(self) -> str | None:
        """Turns are taken by two; without a launch that decodes it has no tile."""
        if self.ping_pong and self.consumers != 2:
            return f"ping_pong=True needs consumers=2, got {self.consumers}"
        return decoding_conflict(self)
