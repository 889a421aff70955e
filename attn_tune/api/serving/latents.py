"""Arguments of attention over a cache of latents, checked and brought to the forms of its ops."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from attn_tune.api.serving.cache_attention import check_query_dtype
from attn_tune.ops.fields.arguments import check_array, check_not_empty
from attn_tune.ops.fields.cache import CODES
from attn_tune.schema.errors import UsageError


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
    cache = check_array("latent_pages", latent_pages)
    # Two axes before the width: the pages or sequences, and their tokens.
    if cache.ndim == 4 and cache.shape[2] == 1:
        cache = cache[:, :, 0]
    width = query.shape[-1]
    if cache.ndim != 3 or cache.shape[-1] != width:
        wanted = f"[pages, P, {width}], the latent ({latent_dim}) and the rotary part ({width - latent_dim})"
        raise UsageError(f"latent_pages must be {wanted} of a token, got shape {latent_pages.shape}")
    if cache.dtype != query.dtype and cache.dtype.name not in CODES:
        raise UsageError(f"latent_pages must be {query.dtype} as q_latent, or {' or '.join(CODES)}, got {cache.dtype}")
    scale = None if kv_scale is None else check_array("kv_scale", kv_scale)
    if scale is not None and scale.ndim:
        if scale.shape not in (cache.shape[:2], (*cache.shape[:2], 1)):
            raise UsageError(f"kv_scale must be one number or {list(cache.shape[:2])}, got {list(scale.shape)}")
        scale = scale.reshape(*cache.shape[:2], 1)
    if scale is not None and cache.dtype.name not in CODES:
        raise UsageError(f"kv_scale belongs to latent_pages of {' or '.join(CODES)}, not of {cache.dtype}")
    if scale is None and cache.dtype.name == "int8":
        raise UsageError("kv_scale is missing: latent_pages of int8 need it")
    return query, cache[:, :, None], latent_dim, scale


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
    check_query_dtype(latent)
    if rope.shape[:-1] != latent.shape[:-1] or rope.dtype != latent.dtype:
        raise UsageError(
            f"q_latent and q_rope must agree in dtype and all axes but the last, got {latent.dtype}"
            f"{list(latent.shape)} and {rope.dtype}{list(rope.shape)}"
        )
    if softmax_scale is None:
        raise UsageError("softmax_scale is None: give that of the model, of heads before the projection is absorbed")
    return jnp.concatenate([latent, rope], axis=-1), latent.shape[-1]
