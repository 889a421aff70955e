"""Attention aligned at the top left, in which a row that sees nothing gives the mean of all values.

So do ``jax.nn.dot_product_attention`` and flax: row ``i`` and key ``i`` stand at the same position for all
lengths, and a hidden logit is a large negative number instead of minus infinity.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from attn_tune.api.flash_attention import flash_attention, without_pairs
from attn_tune.ops.fields.arguments import check_qkv, checked_bias, fit_4d
from attn_tune.ops.fields.heads import repeated
from attn_tune.ops.masks.mask_info import MaskInfo
from attn_tune.ops.masks.visibility import Window, window_of
from attn_tune.schema.errors import UsageError, shown

# The logit of a hidden pair in jax.nn, so the logsumexp of a row that sees nothing: log(S) is lost beside it.
HIDDEN = -0.7 * float(np.finfo(np.float32).max)


class Part(NamedTuple):
    """The rows that see a key and the keys that a row sees, and the window that says so at the bottom right.

    Attributes:
      q_len, kv_len: the numbers of those rows and keys.
      window: the window.
    """

    q_len: int
    kv_len: int
    window: Window


def attend_top_left(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K V"],
    *,
    bias: Array | None = None,
    mask: Bool[Array, "_b _h _t _s"] | None = None,
    scale: Any = None,
    is_causal: bool = False,
    local_window_size: int | tuple[int | None, int | None] | None = None,
    kv_lengths: Int[Array, " B"] | None = None,
    precision: Any = None,
    implementation: str | Mapping[str, str | None] | None = None,
    needs_lse: bool = False,
    dropout_rate: float = 0.0,
    dropout_seed: Any = None,
) -> tuple[Float[Array, "B T N V"], Float[Array, "B N T"] | None]:
    """``(out, lse)`` in O(N) memory beside what is given; no gradient flows through ``lse``.

    A causal edge or a window becomes one of ``flash_attention``, which aligns at the bottom right: keys that no row
    sees and rows that see no key are cut off, so no positions are needed. Without rows or keys no kernel is asked.

    Args:
      bias, mask: 4-D, each axis 1 or that of ``[B, N, T, S]``.
      scale: a number, or a traced one, which multiplies the query.
      kv_lengths: keys from there on are hidden.
      precision: as in ``matmul_precision``.
      implementation: a kernel; None is the lookup's choice.
      needs_lse: without it ``lse`` may be None.

    Raises:
      UsageError: an argument is malformed; the message names it.
      UnsupportedError: no kernel can do this here, or not the requested one.
    """
    shape = check_qkv(query, key, value, may_be_empty=True)
    if bias is not None and not jnp.issubdtype(bias.dtype, jnp.floating):
        bias = bias.astype(jnp.float32)
    bias = checked_bias(bias, shape)
    mask = None if mask is None else fit_4d("mask", mask, shape)
    if isinstance(is_causal, Tracer):
        raise UsageError("is_causal must be True or False, not a traced value")
    left, right = _window(local_window_size)
    part = visible_part(shape["T"], shape["S"], left, 0 if is_causal else right)
    if scale is not None and jnp.ndim(scale):
        raise UsageError(f"scale must be a number, got an array of shape {jnp.shape(scale)}")
    if 0 in (shape["B"], shape["T"], shape["S"]):
        return without_pairs(query, value)
    if isinstance(scale, Tracer):
        # The kernels need a number; one that is traced is a factor of the query.
        query, scale = (query * scale).astype(query.dtype), 1.0
    result = flash_attention(
        query[:, : part.q_len],
        key[:, : part.kv_len],
        value[:, : part.kv_len],
        None if bias is None else bias[:, :, : part.q_len, : part.kv_len],
        mask_info=_mask(part, mask, kv_lengths),
        softmax_scale=scale,
        precision=matmul_precision(precision, query.dtype),
        platform=implementation,
        return_lse=needs_lse or mask is not None,
        dropout_prob=dropout_rate,
        dropout_seed=dropout_seed,
    )
    out, lse = result if isinstance(result, tuple) else (result, None)
    missing = shape["T"] - part.q_len
    if missing:
        out = jnp.pad(out, ((0, 0), (0, missing), (0, 0), (0, 0)))
    if lse is not None:
        lse = jnp.pad(jax.lax.stop_gradient(lse), ((0, 0), (0, 0), (0, missing)))
    if missing or mask is not None or kv_lengths is not None:
        is_empty = _rows_without_keys(shape["T"], shape["S"], left, kv_lengths)
        if mask is not None and lse is not None:
            is_empty = is_empty | jnp.isneginf(lse)
        mean = jnp.mean(value, axis=1, keepdims=True, dtype=jnp.float32).astype(value.dtype)
        mean = repeated(mean, shape["N"] // shape["K"], 2)
        out = jnp.where(is_empty.swapaxes(1, 2)[..., None], mean, out)
        lse = None if lse is None else jnp.where(is_empty, HIDDEN, lse)
    return out, lse


def visible_part(q_len: int, kv_len: int, left: int | None, right: int | None) -> Part:
    """The part of ``T`` and ``S`` that counts where row ``i`` sees the keys ``i - left`` to ``i + right``.

    Both bounds of its window are at least 0: a row then stands ``S - T`` further right, and so do they.
    """
    if right is not None:
        kv_len = min(kv_len, q_len + right)
    if left is not None:
        q_len = min(q_len, kv_len + left)
    offset = kv_len - q_len
    window = (
        None if left is None else left + offset,
        None if right is None else right - offset,
    )
    return Part(q_len, kv_len, window)


def matmul_precision(value: Any, dtype: Any) -> Any:
    """A precision that ``flash_attention`` takes; JAX's other names for the three are understood.

    None is that of ``jax.default_matmul_precision`` for float32, and the default for narrower types, which it does
    not concern.

    Raises:
      UsageError: an algorithm, such as ``"BF16_BF16_F32_X3"``, or no precision at all.
    """
    origin = "precision"
    if value is None:
        if jnp.dtype(dtype) != jnp.float32:
            return None
        value, origin = jax.config.jax_default_matmul_precision, "jax_default_matmul_precision"
    if isinstance(value, tuple | list) and len(value) == 2 and value[0] == value[1]:
        value = value[0]
    try:
        return None if value is None else jax.lax.Precision(value)
    except (ValueError, TypeError):
        raise UsageError(
            f"{origin} must be one that the kernels have: 'default', 'high' or 'highest', got {shown(value)}"
        ) from None


def _rows_without_keys(q_len: int, kv_len: int, left: int | None, kv_lengths: Array | None) -> Bool[Array, "_b 1 T"]:
    """Rows whose window begins behind the last key that counts."""
    ends = kv_len if kv_lengths is None else jnp.minimum(kv_lengths, kv_len)[:, None, None]
    first = jnp.maximum(jnp.arange(q_len) - (q_len if left is None else left), 0)
    return first[None, None] >= ends


def _window(size: Any) -> Window:
    if size is None:
        return (None, None)
    try:
        return window_of(size)
    except UsageError:
        raise UsageError(
            f"local_window_size must be a non-negative integer or (left, right), got {shown(size)}"
        ) from None


def _mask(part: Part, mask: Array | None, kv_lengths: Array | None) -> MaskInfo:
    left, right = part.window
    causal = right == 0
    flags: dict[str, Any] = {"causal": causal, "sliding_window": (left, None if causal else right)}
    if mask is not None:
        mask = mask[:, :, : part.q_len, : part.kv_len]
    if kv_lengths is None:
        return MaskInfo(attention_mask=mask, **flags)
    lengths = MaskInfo.from_lengths(kv_lengths, q_len=part.q_len, kv_len=part.kv_len, **flags)
    return lengths & MaskInfo(attention_mask=mask)
