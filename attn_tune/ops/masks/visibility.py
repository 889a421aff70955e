"""Dense masks and the arithmetic behind them: who sees whom, as boolean arrays."""

# The source digests of kernels count annotations here, and no comments.
# pyright: reportTypeCommentUsage=false

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from attn_tune.ops.fields.heads import repeated
from attn_tune.ops.fields.integers import window_bound
from attn_tune.schema.errors import UsageError, shown

type Window = tuple[int | None, int | None]


def window_of(value: int | tuple[int | None, int | None]) -> Window:
    """``w`` or ``(left, right)`` as a pair; a side of 2**30 tokens or more hides nothing and is None.

    Raises:
      UsageError: not an integer or a pair of them, or negative.
    """
    pair = value if isinstance(value, tuple | list) else (value, value)
    problem = UsageError(f"sliding_window must be a non-negative integer, (left, right) or None, got {shown(value)}")
    if len(pair) != 2:
        raise problem
    bounds = []  # type: list[int | None]
    for bound in pair:
        if bound is None:
            bounds.append(None)
            continue
        if isinstance(bound, bool) or not isinstance(bound, int | np.integer) or bound < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise problem
        bounds.append(window_bound(int(bound)))
    return (bounds[0], bounds[1])


def in_bounds(
    q_positions: Int[Array, "..."],
    kv_positions: Int[Array, "..."],
    *,
    causal: bool,
    window: Window = (None, None),
) -> Bool[Array, "..."]:
    """Whether a key's position is in sight of a row's; the two broadcast against each other."""
    distance = kv_positions - q_positions
    visible = jnp.ones(distance.shape, bool)
    left, right = window
    if causal:
        right = 0 if right is None else min(right, 0)
    if left is not None:
        visible &= distance >= -left
    if right is not None:
        visible &= distance <= right
    return visible


def causal_mask(q_len: int, kv_len: int | None = None) -> Bool[Array, "T S"]:
    """The dense causal mask, bottom-right aligned; lower triangular for ``T == S``."""
    kv_len = q_len if kv_len is None else kv_len
    rows = jnp.arange(q_len)[:, None] + (kv_len - q_len)
    return in_bounds(rows, jnp.arange(kv_len)[None], causal=True)


def split_mask(
    attention_mask: Bool[Array, "... T S"],
) -> tuple[Bool[Array, "B T"], Bool[Array, "B S"]]:
    """Finds the rows that see anything and the columns that are seen, by any head of a 3-D or 4-D mask."""
    mask = attention_mask != 0
    if mask.ndim == 4:
        mask = mask.any(axis=1)
    return mask.any(axis=-1), mask.any(axis=-2)


def combine_masks(q_mask: Bool[Array, "B T"], kv_mask: Bool[Array, "B S"]) -> Bool[Array, "B T S"]:
    """A pair may attend when its row and its column both count. Higher ranks broadcast as they are."""
    q_mask, kv_mask = q_mask != 0, kv_mask != 0
    q_mask = q_mask[:, :, None] if q_mask.ndim == 2 else q_mask
    kv_mask = kv_mask[:, None, :] if kv_mask.ndim == 2 else kv_mask
    return q_mask & kv_mask


def dense_4d(mask: Array) -> Bool[Array, "_b _h _t _s"]:
    """A boolean or integer mask of rank 4, 3 (``[B, T, S]``) or 2 (``[B, S]``, key padding) as 4-D boolean.

    Raises:
      UsageError: another rank, or a floating-point mask.
    """
    if isinstance(mask, np.ndarray) and np.issubdtype(mask.dtype, np.integer):
        # JAX would cut it to 32 bits first.
        mask = mask.astype(bool)
    mask = jnp.asarray(mask)
    if not (mask.dtype == bool or jnp.issubdtype(mask.dtype, jnp.integer)):
        raise UsageError(f"attention_mask must be boolean or integer, got {mask.dtype}; additive masks go into bias")
    mask = mask.astype(bool)
    if mask.ndim == 4:
        return mask
    if mask.ndim == 3:
        return mask[:, None]
    if mask.ndim == 2:
        return mask[:, None, None, :]
    raise UsageError(f"attention_mask must be [B, heads, T, S], [B, T, S] or [B, S], got shape {mask.shape}")


def combine_dense(a: Bool[Array, "_b _h _t _s"], b: Bool[Array, "_b _h _t _s"]) -> Array:
    """Both of two 4-D masks; key/value heads meet query heads group by group."""
    heads = max(a.shape[1], b.shape[1])
    a, b = (
        m if m.shape[1] in (1, heads) or heads % m.shape[1] else repeated(m, heads // m.shape[1], 1) for m in (a, b)
    )
    return a & b


def intersect_windows(a: Window, b: Window) -> Window | None:
    """The tighter of two windows on each side; None when both are open."""
    left, right = (min((x for x in pair if x is not None), default=None) for pair in zip(a, b, strict=True))
    return None if (left, right) == (None, None) else (left, right)
