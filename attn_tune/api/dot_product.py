"""``dot_product_attention``: the function of ``jax.nn``, run by the kernels of this library."""

from typing import Any, Literal, overload

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from attn_tune.api.other_names import OF_JAX, hinting
from attn_tune.api.top_left import HIDDEN, attend_top_left
from attn_tune.ops.fields.arguments import check_array
from attn_tune.schema.errors import UsageError, shown

_OF_FLASH_ATTENTION = {ours: jax for jax, ours in OF_JAX.items()}


@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: Literal[False] = ...,
) -> Array: ...


@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: Literal[True],
) -> tuple[Array, Array]: ...


@hinting("attn_tune.flash_attention, which aligns at the bottom right", _OF_FLASH_ATTENTION)
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """Attention with the signature and the results of ``jax.nn.dot_product_attention`` (JAX 0.11 and 0.12).

    Unlike ``flash_attention``, alignment is at the top left: row ``i`` and key ``i`` stand at one position also where
    ``T != S``. A row that sees nothing gives the mean of all values, or zeros where there are none; one at or past its
    query length gives zeros.
    Gradients reach query, key, value and bias; none flows through the residual.

    Example::

        out = attn_tune.dot_product_attention(query, key, value, is_causal=True)

    Args:
      query: ``[B, T, N, H]``, or ``[T, N, H]`` for a batch of one; key and value likewise. One dtype for the three:
        bfloat16, float16 or float32.
      key: ``[B, S, K, H]``; ``N`` is a multiple of ``K``.
      value: ``[B, S, K, H]``, the shape of key.
      bias: added to the scaled logits; each axis 1 or that of ``[B, N, T, S]``, axes missing in front are 1.
      mask: boolean, true may attend; the same shapes.
      scale: default ``1/sqrt(H)``.
      is_causal: row ``i`` sees keys up to ``i``.
      query_seq_lengths: ``[B]`` integers; rows from there on are padding.
      key_value_seq_lengths: ``[B]`` integers; keys from there on are padding.
      local_window_size: ``w`` or ``(left, right)``: row ``i`` sees the keys ``i - left`` to ``i + right``.
      implementation: None is the lookup's choice; ``"xla"``, ``"cudnn"`` or another kernel of ``flash_attention``
        is used or refused.
      return_residual: also return the logsumexp of the logits, ``[B, T, N]`` or ``[T, N]``, in the dtype of key.

    Raises:
      UsageError: an argument is malformed; the message names it. It is a ``ValueError``, as in JAX.
      UnsupportedError: no kernel can do this here, or not the requested one.
    """
    result_shape = jnp.shape(query)
    q, k, v = (_as_4d(n, x) for n, x in (("query", query), ("key", key), ("value", value)))
    if k.shape != v.shape:
        raise UsageError(f"key and value must have one shape, got {k.shape} and {v.shape}")
    dense = None if mask is None else _as_4d("mask", mask)
    if dense is not None and dense.dtype != bool:
        raise UsageError(
            f"mask must be boolean, got {dense.dtype}: give 'mask != 0' for one of zeros and ones, such as flax makes "
            "(or attn_tune.integrations.flax.attention_fn to its modules), and 'bias' for one that is added"
        )
    if implementation is not None and not isinstance(implementation, str):
        raise UsageError(f"implementation must be the name of a kernel, got {shown(implementation)}")
    q_lengths = _lengths("query_seq_lengths", query_seq_lengths, k.shape[0])
    out, lse = attend_top_left(
        q,
        k,
        v,
        bias=None if bias is None else _as_4d("bias", bias),
        mask=dense,
        scale=scale,
        is_causal=is_causal,
        local_window_size=local_window_size,
        kv_lengths=_lengths("key_value_seq_lengths", key_value_seq_lengths, k.shape[0]),
        implementation=implementation,
        needs_lse=return_residual,
    )
    is_row = None
    if q_lengths is not None:
        is_row = (jnp.arange(q.shape[1])[None] < q_lengths[:, None])[..., None]
        out = jnp.where(is_row[..., None], out, jnp.zeros((), out.dtype))
    out = out.reshape(result_shape)
    if not return_residual or lse is None:
        return out
    residual = lse.swapaxes(1, 2)
    if is_row is not None:
        residual = jnp.where(is_row, residual, HIDDEN)
    return out, residual.astype(k.dtype).reshape(result_shape[:-1])


def _as_4d(name: str, array: ArrayLike) -> Array:
    found = jnp.asarray(array)
    if found.ndim > 4:
        raise UsageError(f"{name} must have at most 4 axes, got shape {found.shape}")
    return found.reshape((1,) * (4 - found.ndim) + found.shape)


def _lengths(name: str, lengths: ArrayLike | None, batch: int) -> Array | None:
    if lengths is None:
        return None
    found = check_array(name, lengths)
    if found.shape != (batch,) or not jnp.issubdtype(found.dtype, jnp.integer):
        raise UsageError(f"{name} must be integers of shape {(batch,)}, got {found.dtype}{list(found.shape)}")
    # Narrower integers would wrap the number of keys that they are compared with.
    return found.astype(jnp.int32)
