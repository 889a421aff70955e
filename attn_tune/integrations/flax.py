"""An attention function for the modules of flax, linen and nnx."""

import math
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from attn_tune.api.top_left import attend_top_left
from attn_tune.ops.fields.arguments import typed_key
from attn_tune.schema.errors import UsageError


def attention_fn(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: Array | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Any = None,
    precision: Any = None,
    module: Any = None,
    force_fp32_for_softmax: bool = True,
    einsum_dot_general: Any = None,
    qk_attn_weights_einsum: Any = None,
    attn_weights_value_einsum: Any = None,
    *,
    is_causal: bool = False,
    local_window_size: int | tuple[int | None, int | None] | None = None,
    implementation: str | None = None,
) -> Array:
    """Attention as flax's ``dot_product_attention`` defines it, in O(N) memory beside what is given.

    Example::

        nn.MultiHeadDotProductAttention(num_heads=8, attention_fn=attention_fn)  # linen
        nnx.MultiHeadAttention(8, 512, attention_fn=attention_fn, decode=False, rngs=rngs)
        functools.partial(attention_fn, is_causal=True)  # instead of a dense causal mask

    A row that sees nothing gives the mean of all values, as in flax. Dropout needs ``broadcast_dropout=False`` on the
    module (its default is True): each weight is dropped by itself, by other random numbers than flax draws.

    Args:
      query: ``[batch..., T, N, H]``, with any number of batch axes, none among them.
      key, value: ``[batch..., S, K, H]`` and ``[batch..., S, K, V]``; ``N`` is a multiple of ``K``.
      bias: broadcastable to ``[batch..., N, T, S]``; added to the scaled logits.
      mask: the same shapes, any dtype; what is not zero may attend.
      dropout_rng: a key, typed or raw; needed where weights are dropped.
      dtype: of the computation; None is that to which query, key and value are promoted.
      precision: of the products, in any of JAX's names for default, high and highest.
      force_fp32_for_softmax: the softmax is in float32 either way.
      is_causal, local_window_size: as in ``attn_tune.dot_product_attention``, for ``functools.partial``.
      implementation: a kernel of ``flash_attention``; None is the lookup's choice.

    Returns:
      ``[batch..., T, N, V]``.

    Raises:
      UsageError: an argument is malformed, or cannot be honoured: dropout that is shared by batch entries and heads,
        weights to be sown (``module``), a product of the caller's own, ``is_causal`` or a window in decoding.
      UnsupportedError: no kernel can do this here, or not the requested one.
    """
    del force_fp32_for_softmax
    if module is not None:
        raise UsageError(
            "sow_weights=True cannot be honoured: the attention weights are never formed; leave attention_fn out"
        )
    for name, given in (
        ("einsum_dot_general", einsum_dot_general),
        ("qk_attn_weights_einsum", qk_attn_weights_einsum),
        ("attn_weights_value_einsum", attn_weights_value_einsum),
    ):
        if given is not None:
            raise UsageError(f"{name} cannot be honoured: the products are those of the kernels")
    # Also where it is no rate, which is refused below.
    drops = dropout_rate != 0 and not deterministic
    if drops and broadcast_dropout:
        raise UsageError(
            "broadcast_dropout=True cannot be honoured: the kernels drop each weight by itself; "
            "give the module broadcast_dropout=False"
        )
    if drops and dropout_rng is None:
        raise UsageError("dropout_rng is missing: dropout needs a key when deterministic=False")
    dtype = jnp.result_type(query, key, value) if dtype is None else dtype
    arrays = tuple(jnp.asarray(x, dtype) for x in (query, key, value))
    for name, x in zip(("query", "key", "value"), arrays, strict=True):
        if x.ndim < 3 or x.shape[:-3] != arrays[0].shape[:-3]:
            raise UsageError(
                f"{name} must have shape [batch..., length, heads, head dim] with the batch axes of query, "
                f"got {x.shape} beside {arrays[0].shape}"
            )
    keys = arrays[1].shape[-3]
    if arrays[0].shape[-3] == 1 < keys and (is_causal or local_window_size is not None):
        raise UsageError(
            f"is_causal and local_window_size count from the first query and key: one query would not see the last of "
            f"{keys} keys; with decode=True the module's own mask is enough, so leave them out there"
        )
    batch = arrays[0].shape[:-3]
    q, k, v = (x.reshape(math.prod(batch), *x.shape[-3:]) for x in arrays)
    out, _ = attend_top_left(
        q,
        k,
        v,
        bias=None if bias is None else _pairs("bias", jnp.asarray(bias), batch),
        mask=None if mask is None else _pairs("mask", jnp.asarray(mask) != 0, batch),
        is_causal=is_causal,
        local_window_size=local_window_size,
        precision=precision,
        implementation=implementation,
        dropout_rate=dropout_rate if drops else 0.0,
        dropout_seed=typed_key(dropout_rng) if drops else None,
    )
    return out.reshape(*batch, *out.shape[1:])


def _pairs(name: str, array: Array, batch: tuple[int, ...]) -> Array:
    """A bias or mask with its batch axes made one, which stays 1 where all of them are."""
    rank = len(batch) + 3
    if array.ndim > rank:
        raise UsageError(f"{name} must broadcast to [batch..., N, T, S], got shape {array.shape}")
    array = array.reshape((1,) * (rank - array.ndim) + array.shape)
    outer, inner = array.shape[:-3], array.shape[-3:]
    if math.prod(outer) == 1:
        return array.reshape(1, *inner)
    if any(size not in (1, whole) for size, whole in zip(outer, batch, strict=True)):
        raise UsageError(f"{name} has the batch axes {outer}; each must be 1 or that of {batch}")
    return jnp.broadcast_to(array, (*batch, *inner)).reshape(math.prod(batch), *inner)
