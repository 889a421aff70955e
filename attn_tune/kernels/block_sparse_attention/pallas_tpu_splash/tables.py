"""Tables of the blocks that a launch visits, made from the traced mask, and the mask inside of one.

JAX's splash attention takes them as a ``MaskInfo``, whose tables it reads from scalar memory: they may be traced.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_mask_info import MaskInfo
from jaxtyping import Array, Bool, Int8, Int16

from attn_tune.kernels.block_sparse_attention.pallas_tpu_splash.config import Launch
from attn_tune.ops.block_sparse_attention.problem import Problem


class Tables(NamedTuple):
    """One entry a block, ``[heads or 1, row blocks, column blocks]``.

    Attributes:
      visits: 1 where the block is visited, else 0.
      walked: the passing side's block to have in memory: its own, or that of the next visit.
    """

    visits: Int8[Array, "_n R C"]
    walked: Int16[Array, "_n R C"]


def tables_of(problem: Problem, launch: Launch, blocks: Bool[Array, "_b _n R C"], *, by_columns: bool) -> Tables:
    """The tables of a launch that walks the columns of a block of rows, or the rows of a block of columns."""
    p = problem
    rows, columns = -(-p.q_len // launch.block_q), -(-p.kv_len // launch.block_kv)
    seen = jnp.repeat(blocks, p.mask_block_q // launch.block_q, axis=2)[:, :, :rows]
    seen = jnp.repeat(seen, p.mask_block_k // launch.block_kv, axis=3)[..., :columns]
    seen = seen & jnp.asarray(_in_sight(p, launch, rows, columns))
    if p.block_dims != "11":
        seen = jnp.broadcast_to(seen, (p.batch, p.num_q_heads, rows, columns))
    seen = seen.reshape(-1, rows, columns)
    walk = seen.swapaxes(1, 2) if by_columns else seen
    heads, outer, inner = walk.shape
    step = jnp.arange(outer * inner, dtype=jnp.int32)
    flat = jnp.where(walk.reshape(heads, -1), step, outer * inner)
    following = lax.cummin(flat, axis=1, reverse=True)
    # Behind the last visit any block will do.
    walked = (jnp.where(following < outer * inner, following, 0) % inner).reshape(walk.shape)
    walked = walked.swapaxes(1, 2) if by_columns else walked
    return Tables(seen.astype(jnp.int8), walked.astype(jnp.int16))


def mask_info(problem: Problem, launch: Launch, tables: Tables) -> MaskInfo:
    """The tables as the library takes them, with the position that each row stands at."""
    positions = None
    if mask_function(problem, launch) is not None:
        positions = jnp.arange(-(-problem.q_len // launch.block_q) * launch.block_q, dtype=jnp.int32) + problem.offset
    return MaskInfo(
        data_next=tables.walked,
        mask_next=None,
        block_mask=tables.visits,
        partial_mask_blocks=None,
        # Typed as an array; the kernels take None.
        q_sequence=positions,  # pyright: ignore[reportArgumentType]
    )


def mask_function(problem: Problem, launch: Launch) -> Callable[[Any, Any], Any] | None:
    """``(positions of rows, columns) -> visible`` for the kernel's body; None where a listed block is seen whole."""
    left, right = problem.bounds
    kv_len = problem.kv_len
    # Segment ids hide the padding.
    is_padded = kv_len % launch.block_kv != 0 and not problem.has_segments
    if left is None and right is None and not is_padded:
        return None

    def visible(position: Any, column: Any) -> Any:
        conditions: list[Any] = []
        if right is not None:
            conditions.append(column <= position + right)
        if left is not None:
            conditions.append(column >= position - left)
        if is_padded:
            conditions.append(column < kv_len)
        seen = conditions[0]
        for condition in conditions[1:]:
            seen = seen & condition
        return seen

    return visible


def _in_sight(p: Problem, launch: Launch, rows: int, columns: int) -> Bool[np.ndarray, "R C"]:
    """The blocks that causality and window leave partly visible."""
    left, right = p.bounds
    row = np.arange(rows)[:, None] * launch.block_q + p.offset
    last_row = np.minimum(row + launch.block_q, p.kv_len) - 1
    column = np.arange(columns)[None] * launch.block_kv
    last_column = np.minimum(column + launch.block_kv, p.kv_len) - 1
    seen = np.ones((rows, columns), bool)
    if right is not None:
        seen &= column <= last_row + right
    if left is not None:
        seen &= last_column >= row - left
    return seen
