"""Arguments of attention over a cache of latents, checked and brought to the forms of its ops."""

import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8

from attn_tune.api.serving.cache_attention import check_query_dtype
from attn_tune.ops.fields.arguments import check_array, check_not_empty
from attn_tune.ops.fields.cache import CODES, COLUMNS, LARGEST_CODE, PACKED, SMALLEST, packed_width
from attn_tune.ops.fields.cache_arguments import check_factors
from attn_tune.schema.errors import UsageError, shown


def latent_operands(
    q_latent: Any, q_rope: Any, latent_pages: Any, kv_scale: Any, softmax_scale: float | None, *, forms: tuple[str, ...]
) -> tuple[Array, Array, int, Array | None]:
    """The queries ``[..., N, L + R]``, the cache ``[pages, P, 1, L + R]``, ``L``, and the scale of its codes.

    Args:
      forms: the shapes that ``q_latent`` may have, as text.

    Raises:
      UsageError: an argument is malformed; the message names it.
    """
    query, latent_dim = latent_query(q_latent, q_rope, softmax_scale, forms=forms)
    cache = check_not_empty("latent_pages", check_array("latent_pages", latent_pages))
    # Two axes before the width: the pages or sequences, and their tokens.
    if cache.ndim == 4 and cache.shape[2] == 1:
        cache = cache[:, :, 0]
    width, is_packed = query.shape[-1], cache.dtype.name == PACKED
    if is_packed:
        _check_packed(query, cache, latent_dim, kv_scale)
    elif cache.ndim != 3 or cache.shape[-1] != width:
        wanted = f"[pages, P, {width}], the latent ({latent_dim}) and the rotary part ({width - latent_dim})"
        raise UsageError(f"latent_pages must be {wanted} of a token, got shape {jnp.shape(latent_pages)}")
    if cache.dtype != query.dtype and cache.dtype.name not in (*CODES, PACKED):
        wanted = f"{query.dtype} as q_latent, {' or '.join(CODES)}, or {PACKED} as of pack_latents"
        raise UsageError(f"latent_pages must be {wanted}, got {cache.dtype}")
    scale = None if kv_scale is None else check_array("kv_scale", kv_scale)
    if scale is not None and scale.ndim:
        if scale.shape not in (cache.shape[:2], (*cache.shape[:2], 1)):
            raise UsageError(f"kv_scale must be one number or {list(cache.shape[:2])}, got {list(scale.shape)}")
        scale = scale.reshape(*cache.shape[:2], 1)
    elif scale is not None:
        check_factors("kv_scale", kv_scale)
    if scale is not None and cache.dtype.name not in CODES:
        raise UsageError(f"kv_scale belongs to latent_pages of {' or '.join(CODES)}, not of {cache.dtype}")
    if scale is None and cache.dtype.name == "int8":
        raise UsageError("kv_scale is missing: latent_pages of int8 need it")
    return query, cache[:, :, None], latent_dim, scale


def _check_packed(query: Array, cache: Array, latent_dim: int, kv_scale: Any) -> None:
    """Check a cache of bytes."""
    if query.dtype == jnp.float32 or latent_dim % COLUMNS:
        raise UsageError(
            f"latent_pages of {PACKED} have scales of {COLUMNS} columns and a rotary part of 16 bits: they need "
            f"q_latent of 16 bits and a multiple of {COLUMNS} wide, got {query.dtype} and {latent_dim}"
        )
    if kv_scale is not None:
        raise UsageError(f"kv_scale belongs to other codes: latent_pages of {PACKED} hold their scales")
    width = packed_width(query.shape[-1], latent_dim)
    if cache.ndim != 3 or cache.shape[-1] != width:
        raise UsageError(f"latent_pages of {PACKED} must be [pages, P, {width}], got shape {cache.shape}")


def pack_latents(latents: Float[Array, "*tokens H"], latent_dim: int) -> UInt8[Array, "*tokens bytes"]:
    """Latents and their rotary parts as bytes, for caches of ``mla_decode`` and ``mla_ragged`` of a little over half.

    Each 128 columns of a latent become codes of float8_e4m3fn with a scale of their own, the largest of them, at least
    ``2**-60``, divided by 448; the rotary part stays as it is. FlashMLA and vLLM (``fp8_ds_mla``) have this order: the
    codes, the scales in float32, the rotary part.

    Args:
      latents: ``[..., L + R]`` in bfloat16 or float16; of no tokens too.
      latent_dim: ``L``, a multiple of 128.

    Returns:
      uint8 ``[..., L + L / 32 + 2 R]``: 656 bytes of DeepSeek-V3's 576 numbers.

    Raises:
      UsageError: another dtype, or a width that is no multiple of 128 or more than there is.
    """
    array = check_array("latents", latents)
    if array.dtype.name not in ("bfloat16", "float16") or not array.ndim:
        raise UsageError(f"latents must be bfloat16 or float16 [..., L + R], got {array.dtype}{list(array.shape)}")
    try:
        length = 0 if isinstance(latent_dim, bool) else operator.index(latent_dim)
    except TypeError:
        length = 0
    if length % COLUMNS or not 0 < length <= array.shape[-1]:
        wanted = f"an integer, a multiple of {COLUMNS} up to {array.shape[-1]}, the width of latents"
        raise UsageError(f"latent_dim must be {wanted}, got {shown(latent_dim)}")
    tokens, most = array.shape[:-1], LARGEST_CODE["float8_e4m3fn"]
    values = array[..., :length].astype(jnp.float32).reshape(*tokens, length // COLUMNS, COLUMNS)
    scales = jnp.maximum(jnp.max(jnp.abs(values), axis=-1), SMALLEST) / most
    codes = jnp.clip(values / scales[..., None], -most, most).astype(jnp.float8_e4m3fn)
    parts = (jax.lax.bitcast_convert_type(x, jnp.uint8) for x in (codes, scales, array[..., length:]))
    # No -1 as the width, which nothing says where there are no tokens.
    flat = [part.reshape(*tokens, math.prod(part.shape[len(tokens) :])) for part in parts]
    return jnp.concatenate(flat, axis=-1)


def latent_query(
    q_latent: Any, q_rope: Any, softmax_scale: float | None, *, forms: tuple[str, ...]
) -> tuple[Array, int]:
    """The queries ``[..., N, L + R]`` of two arrays, and ``L``.

    Args:
      forms: the shapes that ``q_latent`` may have, as text.

    Raises:
      UsageError: they are malformed or do not fit one another, or there is no scale.
    """
    latent = check_not_empty("q_latent", check_array("q_latent", q_latent))
    rope = check_array("q_rope", q_rope)
    if latent.ndim not in {len(form.split()) for form in forms}:
        raise UsageError(f"q_latent must be {' or '.join(forms)}, got shape {latent.shape}")
    check_query_dtype(latent, "q_latent")
    if rope.shape[:-1] != latent.shape[:-1] or rope.dtype != latent.dtype:
        raise UsageError(
            f"q_latent and q_rope must agree in dtype and all axes but the last, got {latent.dtype}"
            f"{list(latent.shape)} and {rope.dtype}{list(rope.shape)}"
        )
    if softmax_scale is None:
        raise UsageError("softmax_scale is None: give that of the model, of heads before the projection is absorbed")
    return jnp.concatenate([latent, rope], axis=-1), latent.shape[-1]
