"""XLA's custom call for cuDNN attention over a cache in pages, built like the calls of ``cudnn_calls``.

JAX's private entry for it wants exactly as many pages as the page table has entries. XLA and cuDNN take any number,
which is what a cache has.
"""

import json
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# The digest of ``cudnn_calls`` is in rows of shipped packs, so its parts keep their names.
from attn_tune.kernels.lang.libraries.cudnn_calls import (
    _BTNH_ORDER,
    _FORWARD,
    _FORWARD_DIMS,
    _WORKSPACE,
    Settings,
    _config,
)

# Contracted and batch axes of each product where heads stand before tokens, as in ``cudnn_calls``.
_HEADS_FIRST_DIMS = {
    "bmm1": ((3, 3), ((0, 1), (0, 1))),
    "bmm2": ((3, 2), ((0, 1), (0, 1))),
}


def paged_call(
    q: Float[Array, "R N H"],
    k: Array,
    v: Array,
    lengths: Int[Array, " R"],
    page_table: Int[Array, "R pages"],
    *,
    scale: float,
    heads_first: bool,
) -> tuple[Float[Array, "R N H"], Float[Array, "R N"]]:
    """``(out, lse)`` of one query of each row over the first ``lengths`` tokens of its pages.

    cuDNN reads whole blocks of keys, of pages behind a length too, and multiplies the values of hidden tokens by zero
    (its manual asks that they be finite): each entry of the table must name a page without other values.

    Args:
      k, v: ``[pages, P, K, H]`` or, with ``heads_first``, ``[pages, K, P, H]``.
      lengths: int32, one at least.
      page_table: int32; the pages of a row in order.
    """
    rows, heads, width = q.shape
    pages, *inner, _ = k.shape
    slots, kv_heads = reversed(inner) if heads_first else inner
    # Of arrays ``_config`` reads shape and dtype.
    plain: tuple[Any, Any] = (
        jax.ShapeDtypeStruct((rows, 1, heads, width), q.dtype),
        jax.ShapeDtypeStruct((pages, slots, kv_heads, width), k.dtype),
    )
    dims = _HEADS_FIRST_DIMS if heads_first else _FORWARD_DIMS
    config = json.loads(_config(*plain, Settings(scale=scale, padded=True), dims))
    config["cudnn_fmha_backend_config"]["is_paged_attention"] = True
    table = page_table[:, None, :, None]
    out, lse, _ = jax.ffi.ffi_call(
        _FORWARD[False],
        (
            jax.ShapeDtypeStruct((rows, heads, 1, width), q.dtype),
            jax.ShapeDtypeStruct((rows, heads, 1), jnp.float32),
            _WORKSPACE,
        ),
        output_layouts=((0, 1, 2, 3) if heads_first else _BTNH_ORDER, (0, 1, 2), (0,)),
        custom_call_api_version=2,
        legacy_backend_config=json.dumps(config),
    )(q[:, :, None] if heads_first else q[:, None], k, v, jnp.ones(rows, jnp.int32), lengths, table, table)
    return out[:, :, 0], lse[:, :, 0]
