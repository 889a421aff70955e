"""The knobs of the forward for Hopper."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from attn_tune.kernels.knobs import Choice, Flag, Knobs, Range
from attn_tune.kernels.lang.gluon import TILE_ROWS

# Two groups of four warps multiply, each 64 rows: the most whose accumulators fit the registers of one multiprocessor.
CONSUMERS, WARPS = 2, 4
BLOCK_Q = TILE_ROWS
ROWS = BLOCK_Q // CONSUMERS


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(Knobs):
    """A program owns 128 query rows at a time and walks their keys ``block_k`` at a time."""

    owns_keys: ClassVar[bool] = False

    block_k: Annotated[int, Choice((32, 64, 128, 256), tried=(32, 64, 128), doc="keys of a tile")]
    num_stages: Annotated[int, Range(2, 8, tried=(2, 3, 4), doc="tiles of keys, and of values, in shared memory")]
    heads_per_section: Annotated[
        int,
        Range(
            1,
            2**20,
            doc="batch-heads that are worked on together: more of them balance the work, fewer of them stay in the "
            "L2 cache",
        ),
    ]
    num_programs: Annotated[int, Range(1, 2**16, doc="programs that share all tiles of rows; one a multiprocessor")]
    ping_pong: Annotated[
        bool,
        Flag(doc="the two groups of warps start their products in turns: one's softmax meets the other's products"),
    ] = False
    fast_tanh: Annotated[
        bool,
        Flag(doc="a soft cap goes through the hardware's tanh, off by up to 2**-11 of the capped logit"),
    ] = False

    @property
    def block_q(self) -> int:
        """Query rows of one tile."""
        return BLOCK_Q
