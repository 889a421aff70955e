"""Attention over a sharded sequence by one call on each device, which first gets what it needs of the others."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn_tune.api.context_parallel.hops import Ring
from attn_tune.api.context_parallel.layouts import from_natural, local_positions, to_natural
from attn_tune.api.context_parallel.ring import Local
from attn_tune.api.flash_attention import flash_attention
from attn_tune.ops.masks.mask_info import MaskInfo
from attn_tune.schema.errors import UnsupportedError


def check_ulysses(ring: Ring, num_q_heads: int, num_kv_heads: int, chunks: int) -> None:
    """Check that the heads of a chunk, of which there are ``chunks``, can be dealt out.

    Raises:
      UnsupportedError: they do not divide by the number of devices.
    """
    of_each, fewer = (f" of each of {chunks} chunks", "fewer chunks, ") if chunks > 1 else ("", "")
    for word, heads in (("query heads", num_q_heads), ("key/value heads", num_kv_heads)):
        if heads % ring.size:
            raise UnsupportedError(
                f"strategy='ulysses' gives each of {ring.size} devices its share of the {heads} {word}{of_each}, which "
                f"do not divide: use {fewer}strategy='ring', or repeat_kv_heads for keys and values"
            )


def ulysses(
    ring: Ring, local: Local, returns_lse: bool, arguments: Mapping[str, Any]
) -> tuple[Float[Array, "B T N V"], Float[Array, "B N T"] | None]:
    """``(out, lse)`` after an exchange of tokens for heads, and back (Jacobs et al., arXiv 2309.14509).

    ``arguments`` are more of ``flash_attention``. The lse is None unless it is to be returned.
    """
    size, name = ring.size, ring.axis_name

    def to_heads(x: Array) -> Array:
        whole = jax.lax.all_to_all(x, name, split_axis=2, concat_axis=1, tiled=True)
        return to_natural(whole, 1, size, ring.layout)

    def to_tokens(x: Array) -> Array:
        shards = from_natural(x, 1, size, ring.layout)
        return jax.lax.all_to_all(shards, name, split_axis=1, concat_axis=2, tiled=True)

    sinks = local.sinks
    if sinks is not None:
        share = sinks.size // size
        sinks = jax.lax.dynamic_slice_in_dim(sinks, jax.lax.axis_index(name) * share, share)
    q, k, v = (to_heads(x) for x in (local.q, local.k, local.v))
    q_segments, kv_segments = (_gathered(ring, x) for x in (local.q_segments, local.kv_segments))
    segments = {"q_segment_ids": q_segments, "kv_segment_ids": kv_segments}
    found = flash_attention(q, k, v, softmax_aux=sinks, return_lse=returns_lse, **segments, **arguments)
    if not returns_lse:
        return to_tokens(found), None
    out, lse = found
    return to_tokens(out), to_tokens(lse.swapaxes(1, 2)).swapaxes(1, 2)


def all_gather(
    ring: Ring, local: Local, returns_lse: bool, arguments: Mapping[str, Any]
) -> tuple[Float[Array, "B T N V"], Float[Array, "B N T"] | None]:
    """``(out, lse)`` of the device's own queries over all keys, which it gathers; arguments as of ``ulysses``."""
    length = local.q.shape[1]
    k, v, kv_segments = (_gathered(ring, x) for x in (local.k, local.v, local.kv_segments))
    mask = MaskInfo(
        q_positions=local_positions(length, ring.axis_name, ring.layout)[None],
        kv_positions=jnp.arange(length * ring.size, dtype=jnp.int32)[None],
    )
    found = flash_attention(
        local.q,
        k,
        v,
        softmax_aux=local.sinks,
        mask_info=mask,
        q_segment_ids=local.q_segments,
        kv_segment_ids=kv_segments,
        return_lse=returns_lse,
        **arguments,
    )
    return found if returns_lse else (found, None)


def _gathered(ring: Ring, x: Any) -> Any:
    """All tokens in the order of the sequence; None for None."""
    if x is None:
        return None
    return to_natural(jax.lax.all_gather(x, ring.axis_name, axis=1, tiled=True), 1, ring.size, ring.layout)
