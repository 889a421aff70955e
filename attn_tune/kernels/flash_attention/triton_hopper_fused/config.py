"""The knobs of the fused backward for Hopper."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from attn_tune.kernels.knobs import Choice, Flag, Knobs, Range

# Two groups of four warps multiply; the rows of one Hopper matrix instruction.
CONSUMERS, WARPS, ROWS = 2, 4, 64


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig(Knobs):
    """A program owns ``block_k`` keys at a time and walks their rows ``block_q`` at a time, for all gradients."""

    owns_keys: ClassVar[bool] = True

    block_q: Annotated[int, Choice((64, 128), tried=(64, 128), doc="query rows of a tile")]
    num_stages: Annotated[int, Range(1, 8, tried=(2, 3), doc="tiles of queries in shared memory")]
    dout_stages: Annotated[
        int, Range(1, 8, tried=(1, 2), doc="tiles of the output's gradient, which is done with sooner")
    ]
    block_k: Annotated[
        int,
        Choice(
            (ROWS, CONSUMERS * ROWS),
            doc="keys of a tile: with 128 each group of warps owns 64, with 64 both share them and each owns half "
            "of the columns of their gradients",
        ),
    ]
    num_programs: Annotated[int, Range(1, 2**16, doc="programs that share all tiles of keys; one a multiprocessor")]
    staged_dq: Annotated[
        bool,
        Flag(
            doc="shares of dq go through shared memory and are added by descriptor, not from registers: fewer, larger "
            "additions, and a buffer for each group of warps"
        ),
    ] = True
    ahead: Annotated[
        bool, Flag(doc="the next tile's first product runs while the last share of dq leaves; takes registers")
    ] = True
    late_dq: Annotated[
        bool,
        Flag(
            doc="dq of a tile of rows is made beside the next tile's weights, so that the groups of warps do not wait "
            "for one another"
        ),
    ] = False
    takes_late: Annotated[
        bool,
        Flag(
            doc="a program takes its next tile of keys just before it is done with one, not as it begins it: a tile "
            "that waits for its program is none for others"
        ),
    ] = True
    fast_tanh: Annotated[
        bool,
        Flag(doc="a soft cap goes through the hardware's tanh, off by up to 2**-11 of the capped logit"),
    ] = False

    def conflict(self) -> str | None:
        """Groups that share keys make 64 rows of dq each, all of a tile, and wait for one another in every step."""
        if self.block_k == ROWS and self.block_q != ROWS:
            return f"block_k={ROWS} needs block_q={ROWS}, got {self.block_q}"
        if self.block_k == ROWS and self.late_dq:
            return f"block_k={ROWS} makes dq in its own step: late_dq must be False"
        return None
