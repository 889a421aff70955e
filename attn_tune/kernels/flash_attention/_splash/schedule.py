"""The blocks of the score matrix that a launch visits, their order, and the mask inside of one.

JAX's splash attention takes this as a ``MaskInfo``. It can be computed there from a dense mask, block by block; causal
edges and windows are computed here in closed form, so that tracing 128k tokens takes milliseconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_tune.kernels.flash_attention._splash.extent import Extent, table_itemsize

SKIP, VISIT = 0, 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule(Extent):
    """The blocks of an ``Extent`` in the order in which a launch visits them."""

    def visible_blocks(self) -> np.ndarray:
        """``[row blocks, column blocks]`` of one sequence, true where some kept row sees some column."""
        p = self.problem
        rows = np.arange(self.q_len // self.block_q)[:, None]
        cols = np.arange(self.kv_len // self.block_kv)[None, :]
        first_position = rows * self.block_q + p.offset
        last_position = np.minimum((rows + 1) * self.block_q, p.q_len) - 1 + p.offset
        first_col = cols * self.block_kv
        last_col = np.minimum((cols + 1) * self.block_kv, p.kv_len) - 1
        left, right = p.bounds
        seen = np.ones((rows.size, cols.size), bool)
        if right is not None:
            seen &= first_col <= last_position + right
        if left is not None:
            seen &= last_col >= first_position - left
        return seen

    def mask_function(self) -> Callable[[Any, Any], Any] | None:
        """``(positions of rows, columns) -> visible`` for the kernel's body; None where nothing is hidden."""
        if not self.is_masked:
            return None
        left, right = self.problem.bounds
        kv_len = self.problem.kv_len
        # Kept rows end at column kv_len - 1: a causal edge hides the padding by itself, and so do segment ids.
        padded = self.kv_len != kv_len and right != 0 and not self.problem.has_segments

        def visible(position, column):
            conditions = []
            if right is not None:
                conditions.append(column <= position + right)
            if left is not None:
                conditions.append(column >= position - left)
            if padded:
                conditions.append(column < kv_len)
            seen = conditions[0]
            for condition in conditions[1:]:
                seen = seen & condition
            return seen

        return visible

    def by_rows(self) -> Any:
        """The ``MaskInfo`` of a launch that walks the columns of one block of rows after the other."""
        if not self.is_masked and self.sequences == 1:
            return _mask_info(None, None, None)
        visits, walked = _walk(self._all_blocks(), shrink=True)
        return _mask_info(visits, walked, self._positions())

    def by_columns(self, *, shrink: bool) -> Any:
        """The same for one that walks the rows of one block of columns after the other.

        Without ``shrink`` step ``i`` is row block ``i``, visited or not: what the fused backward needs, which writes
        its share of dq at every step.
        """
        if not self.is_masked and self.sequences == 1:
            return _mask_info(None, None, None)
        visits, walked = _walk(self._all_blocks().T, shrink=shrink)
        return _mask_info(visits.T, walked.T, self._positions())

    def _all_blocks(self) -> np.ndarray:
        return np.kron(np.eye(self.sequences, dtype=bool), self.visible_blocks())

    def _positions(self) -> np.ndarray | None:
        """The column that each row stands at."""
        if not self.is_masked:
            return None
        row = np.arange(self.q_len, dtype=np.int32) + np.int32(self.problem.offset)
        start = np.arange(self.sequences, dtype=np.int32) * np.int32(self.kv_len)
        return (start[:, None] + row).reshape(-1)


def _mask_info(visits: Any, walked: Any, positions: Any) -> Any:
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_mask_info import MaskInfo

    def scalars(array: Any) -> Any:
        # One table for all heads; scalar memory is 1 MiB, so entries are as narrow as they can be.
        return None if array is None else jnp.asarray(array.astype(f"int{8 * table_itemsize(int(array.max()))}"))[None]

    return MaskInfo(
        data_next=scalars(walked),
        mask_next=None,
        block_mask=scalars(visits),
        partial_mask_blocks=None,
        # Typed as an array; the kernels take None.
        q_sequence=None if positions is None else jnp.asarray(positions),  # pyright: ignore[reportArgumentType]
    )


def _walk(seen: np.ndarray, *, shrink: bool) -> tuple[np.ndarray, np.ndarray]:
    """Per step of ``[outer, inner]``: whether it is a visit, and the inner block to have in memory.

    A step that is none names the block of the next visit, so that it is fetched meanwhile.
    """
    outer, inner = seen.shape
    width = max(1, int(seen.sum(axis=1).max())) if shrink else inner
    # A stable sort of "hidden" moves the visible blocks of each row to its front, in order.
    order = np.argsort(~seen, axis=1, kind="stable") if shrink else np.tile(np.arange(inner), (outer, 1))
    order = order[:, :width]
    visits = np.take_along_axis(seen, order, axis=1)
    steps = np.flatnonzero(visits)
    following = np.searchsorted(steps, np.arange(visits.size)) % steps.size
    walked = order.reshape(-1)[steps[following]].reshape(visits.shape)
    return np.where(visits, VISIT, SKIP).astype(np.int32), walked.astype(np.int32)
