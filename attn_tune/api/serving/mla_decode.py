"""The public ``mla_decode``: new tokens of each sequence over a cache of latents, of which values are part of keys.

It is the op ``paged_decode`` with a cache of layout ``latent``, and is looked up and tuned as that.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from attn_tune.api.serving.latents import latent_operands
from attn_tune.api.serving.paged_decode import decoded
from attn_tune.api.serving.ragged_paged import ragged
from attn_tune.ops.fields.cache import LATENT, PACKED
from attn_tune.ops.fields.cache_arguments import check_integers, first_sequences
from attn_tune.schema.errors import UsageError


def mla_decode(
    q_latent: Float[Array, "..."],
    q_rope: Float[Array, "..."],
    latent_pages: Array,
    kv_lens: Int[Array, " B"],
    page_table: Int[Array, "B pages"] | None = None,
    *,
    softmax_scale: float,
    num_seqs: int | Int[Array, ""] | None = None,
    sliding_window: int | None = None,
    logits_soft_cap: float | None = None,
    softmax_aux: Float[Array, "..."] | None = None,
    kv_scale: Float[Array, "..."] | float | None = None,
    max_kv_len: int | None = None,
    workload: str = "eq",
    return_lse: bool = False,
    platform: str | Mapping[str, str | None] | None = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Sequence[PartitionSpec | None] | None = None,
    out_specs: PartitionSpec | None = None,
) -> Any:
    """Latent attention (MLA) of the new tokens of each sequence over a cache that holds their latents already.

    The projection from latents to keys is absorbed in ``q_latent``, that from latents to values comes after the call:
    all query heads share one key of ``L + R`` numbers, the latent and the rotary part, and its latent is the value too.
    A row of the cache is read once. The last query of a sequence stands at its last token, and each query sees the
    tokens up to its own. What no query sees may be anything, as in ``paged_decode``. There is no derivative.

    Args:
      q_latent: ``[B, N, L]``, one new token of each sequence, or ``[B, T, N, L]``, one to eight.
      q_rope: ``[B, N, R]`` or ``[B, T, N, R]``: the rotary part of the queries. Slices of one array are not copied.
      latent_pages: the cache ``[pages, P, L + R]``, in pages of ``P`` tokens, each its latent and then the rotary part
        of its key; a key head's axis of one may stand before the last. Without ``page_table`` ``[B, S, L + R]``. Bytes,
        as of ``pack_latents``, are read by ``mla_ragged``, whose op is looked up then.
      kv_lens: int32 tokens of each sequence in the cache, new ones included. None below 0 or above what its row of the
        table holds is counted as 0 or that; a sequence of 0 has zeros as its output.
      page_table: int32 ``[B, pages of a sequence]``; page ``i`` holds the tokens from ``i * P`` on. None: no pages.
      softmax_scale: multiplies the logits. It has no default: that of the model is of the heads before the projection
        is absorbed (DeepSeek-V3: ``1/sqrt(128 + 64)``, times the square of its YaRN factor), not of ``L + R``.
      num_seqs: sequences from this one on are empty.
      sliding_window: the number of tokens before its own that a query sees; None is all.
      logits_soft_cap: logits become ``cap * tanh(logits / cap)``.
      softmax_aux: attention sinks, as in ``flash_attention``.
      kv_scale: float32, of a cache of float8_e4m3fn or int8 codes, which it multiplies: one number, or one for each
        token, with the axes of ``latent_pages`` but the last. Those that are read must be positive and finite. None
        with a cache of float8_e4m3fn: 1. int8 needs it.
      max_kv_len: the longest sequence to expect, which chooses the config; longer ones are right too. Default: what a
        row of the table holds.
      workload: the profile of lengths to expect, which chooses the config: ``eq``, ``uni``, ``exp`` or ``one``.
      return_lse: return ``(out, lse)``.
      platform: the kernel to use, as in ``flash_attention``.
      cfg: the config to use, as in ``flash_attention``.
      mesh: run under ``shard_map``, as in ``flash_attention``: over query heads, each device with the whole cache, and
        of a contiguous cache over sequences.
      in_specs: the specs on ``mesh`` of the query ``[B, T, N, L + R]`` and the cache with its key head's axis.
      out_specs: the spec of the output.

    Returns:
      ``out``, like ``q_latent``. With ``return_lse`` also the natural logarithm of the softmax's denominator,
      ``[B, N]`` or ``[B, T, N]`` in float32, sinks included; where nothing is seen theirs alone, or
      minus infinity.

    Raises:
      UsageError: an argument is malformed; the message names it.
      UnsupportedError: no kernel can do this here, or not the requested one; or a derivative is asked for.
    """
    query, cache, latent_dim, scale = latent_operands(
        q_latent, q_rope, latent_pages, kv_scale, softmax_scale, forms=("[B, N, L]", "[B, T, N, L]")
    )
    options = {
        "layout": LATENT,
        "latent_dim": latent_dim,
        "sliding_window": sliding_window,
        "softmax_scale": softmax_scale,
        "logits_soft_cap": logits_soft_cap,
        "softmax_aux": softmax_aux,
        "k_scale": scale,
        "v_scale": scale,
        "max_kv_len": max_kv_len,
        "workload": workload,
    }
    place = {"platform": platform, "cfg": cfg, "mesh": mesh, "in_specs": in_specs, "out_specs": out_specs}
    if cache.dtype == PACKED:
        return _packed(
            query, cache, kv_lens, page_table, num_seqs=num_seqs, return_lse=return_lse, place=place, **options
        )
    return decoded(
        query,
        (cache, None),
        kv_lens,
        page_table,
        num_seqs=num_seqs,
        return_lse=return_lse,
        place=place,
        **options,
    )


def _packed(
    query: Array, cache: Array, kv_lens: Any, page_table: Any, *, num_seqs: Any, return_lse: bool, **options: Any
) -> Any:
    """The result for a cache of bytes: that of ``mla_ragged`` with as many new tokens of each sequence.

    Raises:
      UsageError: as ``mla_ragged``, or a mesh is given, whose specs are of other arrays.
    """
    if options["place"]["mesh"] is not None:
        raise UsageError(f"mesh goes with other latents: call mla_ragged for latent_pages of {PACKED}")
    rows, batch = query.reshape(-1, *query.shape[-2:]), query.shape[0]
    ends = jnp.arange(batch + 1, dtype=jnp.int32) * (rows.shape[0] // max(1, batch))
    # Not left to ``ragged``, where queries of no sequence have no sinks either: here empty sequences have them.
    lengths = first_sequences(num_seqs, check_integers("kv_lens", kv_lens, (batch,), "q_latent"))
    found = ragged(
        rows, (cache, None), (lengths, ends), page_table, num_seqs=None, causal=True, return_lse=True, **options
    )
    out, lse = (x.reshape(*query.shape[:-1], *x.shape[2:]) for x in found)
    return (out, lse) if return_lse else out
