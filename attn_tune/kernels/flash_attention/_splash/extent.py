"""The score matrix of a launch, in blocks. Free of numpy and jax: limits are asked for wherever there is neither."""

from dataclasses import dataclass

from attn_tune.kernels.lang.pallas_tpu.memory import round_up
from attn_tune.ops.flash_attention.problem import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent:
    """The score matrix in blocks of ``block_q`` rows by ``block_kv`` columns, both lengths padded to whole blocks.

    With segment ids, which the kernel has one row of, the sequences of a batch lie end to end and the matrix is that
    of all of them, with blocks on its diagonal; otherwise each sequence is a few more heads.
    """

    problem: Problem
    block_q: int
    block_kv: int

    @property
    def q_len(self) -> int:
        """Padded."""
        return round_up(self.problem.q_len, self.block_q)

    @property
    def kv_len(self) -> int:
        """Padded."""
        return round_up(self.problem.kv_len, self.block_kv)

    @property
    def is_masked(self) -> bool:
        """The kernel must look at positions inside of a block."""
        p = self.problem
        left, right = p.bounds
        last = p.kv_len - 1
        # The first row stands at the offset, the last one at the last column.
        bounded = (right is not None and p.offset + right < last) or (left is not None and left < last)
        # Segment ids hide the padding.
        return bounded or (self.kv_len != p.kv_len and not p.has_segments)

    @property
    def sequences(self) -> int:
        """Sequences that lie end to end."""
        return self.problem.batch if self.problem.has_segments else 1


def table_itemsize(largest: int) -> int:
    """Bytes of the narrowest signed integer that holds ``largest``."""
    return next(size for size in (1, 2, 4) if largest < 2 ** (8 * size - 1))
