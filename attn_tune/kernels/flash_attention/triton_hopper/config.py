"""The knobs of the forward for Hopper."""

from dataclasses import dataclass

from attn_tune.schema.errors import UsageError

# Two groups of four warps multiply, each 64 rows: the most whose accumulators fit the registers of one multiprocessor.
CONSUMERS, WARPS, ROWS = 2, 4, 64
BLOCK_Q = CONSUMERS * ROWS


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig:
    """A program owns 128 query rows at a time and walks their keys ``block_k`` at a time.

    Attributes:
      num_stages: tiles of keys, and of values, in shared memory.
      heads_per_section: batch-heads that are worked on together: more of them balance the work, fewer of them stay in
        the L2 cache.
      num_programs: programs that share all tiles of rows; one a multiprocessor.
      ping_pong: the two groups of warps start their products in turns: one's softmax meets the other's products.
      fast_tanh: a soft cap goes through the hardware's tanh, off by up to 2**-11 of the capped logit.

    Raises:
      UsageError: a knob is outside its range.
    """

    block_k: int
    num_stages: int
    heads_per_section: int
    num_programs: int
    ping_pong: bool = False
    fast_tanh: bool = False

    def __post_init__(self):
        if self.block_k not in (32, 64, 128, 256):
            raise UsageError(f"block_k must be 32, 64, 128 or 256, got {self.block_k!r}")
        for name, least, most in (
            ("num_stages", 2, 8),
            ("heads_per_section", 1, 2**20),
            ("num_programs", 1, 2**16),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or not least <= value <= most:
                raise UsageError(f"{name} must be between {least} and {most}, got {value!r}")

    @property
    def block_q(self) -> int:
        """Query rows of one tile."""
        return BLOCK_Q
