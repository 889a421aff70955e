"""The place of a problem in the padded arrays of the kernel."""

from dataclasses import dataclass

from attn_tune.kernels.lang.pallas_tpu.memory import LANES, round_up
from attn_tune.ops.flash_attention.problem import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """The lengths and the head dim that the kernel sees, in whole blocks.

    The kernel aligns causal masks at the top left. Padding in front of the shorter side makes that the bottom right.
    """

    problem: Problem
    block_q: int
    block_k: int

    @property
    def q_lead(self) -> int:
        """Rows in front of the first."""
        return max(0, self.problem.offset) if self.problem.causal else 0

    @property
    def k_lead(self) -> int:
        """Keys in front of the first."""
        return max(0, -self.problem.offset) if self.problem.causal else 0

    @property
    def q_len(self) -> int:
        """Padded."""
        return round_up(self.q_lead + self.problem.q_len, self.block_q)

    @property
    def kv_len(self) -> int:
        """Padded."""
        return round_up(self.k_lead + self.problem.kv_len, self.block_k)

    @property
    def head_dim(self) -> int:
        """One for queries, keys and values; above 128 in whole lanes."""
        width = max(self.problem.head_dim, self.problem.v_head_dim)
        return width if width <= LANES else round_up(width, LANES)

    @property
    def needs_ids(self) -> bool:
        """Segment ids are there, or must hide keys that padding added and no causal edge hides."""
        p = self.problem
        added_behind = self.kv_len != p.kv_len and not p.causal
        return p.has_segments or self.k_lead > 0 or added_behind

    @property
    def needs_bias(self) -> bool:
        """A bias or a dense mask, which is a bias to the kernel."""
        return self.problem.bias_dims is not None or self.problem.mask_dims is not None
