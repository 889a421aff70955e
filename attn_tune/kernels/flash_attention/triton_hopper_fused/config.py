"""The knobs of the fused backward for Hopper."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from attn_tune.kernels.knobs import Choice, Flag, Knobs, Range

# Two groups of four warps multiply, each 64 keys: the rows of one Hopper matrix instruction.
CONSUMERS, WARPS, ROWS = 2, 4, 64
BLOCK_K = CONSUMERS * ROWS


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig(Knobs):
    """A program owns 128 keys at a time and walks their rows ``block_q`` at a time, for all three gradients."""

    owns_keys: ClassVar[bool] = True

    block_q: Annotated[int, Choice((64, 128), tried=(64, 128), doc="query rows of a tile")]
    num_stages: Annotated[
        int, Range(1, 8, tried=(2, 3), doc="tiles of queries, and of the output's gradient, in shared memory")
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

    @property
    def block_k(self) -> int:
        """Keys of one tile."""
        return BLOCK_K
