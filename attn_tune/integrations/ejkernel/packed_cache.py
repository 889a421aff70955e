"""Attention of ejkernel over one packed cache, in the layout of tpu-inference, which each call writes first."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

import attn_tune
from attn_tune.integrations.ejkernel.arguments import (
    check_mask_value,
    kernel_of,
    leave_out,
    refuse,
    refuse_mesh,
    window_before,
)
from attn_tune.schema.errors import UsageError

type Specs = Sequence[PartitionSpec | None] | None


def ragged_page_attention_v3(
    queries: Float[Array, "tokens N H"],
    keys: Float[Array, "tokens K H"],
    values: Float[Array, "tokens K H"],
    kv_cache: Float[Array, "pages P words packing padded"],
    kv_lens: Int[Array, " B"],
    block_tables: Int[Array, " entries"],
    query_start_loc: Int[Array, " ends"],
    distribution: Int[Array, "3"],
    softmax_aux: Float[Array, " N"] | None = None,
    /,
    *,
    softmax_scale: float = 1.0,
    sliding_window: int | None = None,
    logits_soft_cap: float | None = None,
    q_scale: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    vmem_limit_bytes: int | None = None,
    platform: str | None = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Specs = None,
    out_specs: Any = None,
) -> tuple[Float[Array, "tokens N H"], Float[Array, "pages P words packing padded"]]:
    """``attn_tune.paged_append`` and ``ragged_paged`` of layout ``interleaved``: ``(out, kv_cache)``.

    The cache stays as it is packed; donate it under ``jax.jit``, and it is written in place. Heads that are padded to
    128 are multiplied padded.

    Args:
      queries, keys, values: ``[tokens, N, H]`` and ``[tokens, K, H]`` twice; keys and values in the cache's dtype.
      kv_cache: ``[pages, P, 2 K / packing, packing, H padded to 128]`` in 16 or 32 bits; caches of codes are refused.
      kv_lens: int32 ``[B]``, new tokens included.
      block_tables: int32 ``[B * pages of a sequence]``, flat.
      query_start_loc: int32 ``[B + 1]``.
      distribution: int32 ``[3]``; the last is the number of sequences that count.
      softmax_aux: one sink a query head.
      softmax_scale: 1.0 by default, as there.
      sliding_window: the tokens that a query sees, its own included.
      q_scale: refused: queries are not quantised here.
      k_scale, v_scale: refused: the cache holds no codes here.
      vmem_limit_bytes: left out with a warning.
      mesh, in_specs, out_specs: refused.

    Raises:
      UsageError: an argument is malformed or cannot be honoured.
    """
    name = "ragged_page_attention_v3"
    refuse_mesh(name, mesh, in_specs, out_specs)
    refuse(name, "queries stay in their dtype; leave it out", q_scale=q_scale)
    refuse(
        name, "call attn_tune.paged_append and ragged_paged with k_scale and v_scale", k_scale=k_scale, v_scale=v_scale
    )
    leave_out(name, vmem_limit_bytes=vmem_limit_bytes)
    pages, page_size, words, packing, width = kv_cache.shape
    kv_heads, head_dim = keys.shape[1:]
    if kv_cache.dtype.itemsize < 2 or words * packing != 2 * kv_heads or width < head_dim:
        raise UsageError(
            f"{name}: kv_cache must hold 2 * {kv_heads} heads of {head_dim} or more in 16 or 32 bits, got "
            f"{kv_cache.dtype}{list(kv_cache.shape)}; other caches are those of attn_tune.ragged_paged"
        )
    pad = ((0, 0), (0, 0), (0, width - head_dim))
    table = block_tables.reshape(kv_lens.shape[0], -1)
    cache = attn_tune.paged_append(
        jnp.pad(keys, pad),
        jnp.pad(values, pad),
        kv_cache.reshape(pages, page_size, words * packing, width),
        None,
        kv_lens,
        table,
        cu_q_lens=query_start_loc,
        num_seqs=distribution[2],
        layout="interleaved",
    )
    out = attn_tune.ragged_paged(
        jnp.pad(queries, pad),
        cache.k_pages,
        None,
        kv_lens,
        query_start_loc,
        table,
        num_seqs=distribution[2],
        layout="interleaved",
        sliding_window=window_before(name, sliding_window),
        softmax_scale=softmax_scale,
        logits_soft_cap=logits_soft_cap,
        softmax_aux=softmax_aux,
        platform=kernel_of(name, platform, cfg),
    )[..., :head_dim]
    return out, cache.k_pages.reshape(kv_cache.shape)


def multi_latent_ragged_page_attention(
    queries_nope: Float[Array, "tokens N L"],
    queries_pe: Float[Array, "tokens N R"],
    keys_values: Float[Array, "tokens L"],
    keys_pe: Float[Array, "tokens R"],
    kv_cache: Float[Array, "pages words packing padded"],
    kv_lens: Int[Array, " B"],
    block_tables: Int[Array, " entries"],
    query_start_loc: Int[Array, " ends"],
    distribution: Int[Array, "3"],
    /,
    *,
    softmax_scale: float | None = None,
    sliding_window: int | None = None,
    logits_soft_cap: float | None = None,
    mask_value: float | None = None,
    q_scale: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    platform: str | None = None,
    cfg: Any = None,
) -> tuple[Float[Array, "tokens N L"], Float[Array, "pages words packing padded"]]:
    """Latents written by a scatter, then ``attn_tune.mla_ragged``: ``(out, kv_cache)``.

    ``multi_latent_ragged_page_attention_v2`` is this function too.

    Args:
      queries_nope, queries_pe: absorbed queries ``[tokens, N, L]`` and their rotary part ``[tokens, N, R]``.
      keys_values, keys_pe: new latents ``[tokens, L]`` and rotary keys ``[tokens, R]``.
      kv_cache: ``[pages, P / packing, packing, L and R each padded to 128]`` in 16 or 32 bits.
      kv_lens: int32 ``[B]``, new tokens included.
      block_tables: int32 ``[B * pages of a sequence]``, flat.
      query_start_loc: int32 ``[B + 1]``.
      distribution: int32 ``[3]``; the last is the number of sequences that count.
      softmax_scale: default one over the root of ``L + R``, as there; models have another one.
      sliding_window: the tokens that a query sees, its own included.
      q_scale, k_scale: multiply the logits.
      v_scale: multiplies the output.

    Raises:
      UsageError: an argument is malformed or cannot be honoured.
    """
    name = "multi_latent_ragged_page_attention"
    check_mask_value(name, mask_value)
    (tokens, _, latent), rotary = queries_nope.shape, queries_pe.shape[-1]
    pages, words, packing, width = kv_cache.shape
    pads = (-latent % 128, -rotary % 128)
    if kv_cache.dtype.itemsize < 2 or width != latent + rotary + sum(pads):
        raise UsageError(
            f"{name}: kv_cache must be [pages, P / packing, packing, {latent + rotary + sum(pads)}] in 16 or 32 bits, "
            f"got {kv_cache.dtype}{list(kv_cache.shape)}; other caches are those of attn_tune.mla_ragged"
        )
    page_size = words * packing
    table = block_tables.reshape(kv_lens.shape[0], -1)
    # The sequence of each token and its position; tokens of no sequence that counts see and write nothing.
    at = jnp.arange(tokens, dtype=jnp.int32)
    sequence = jnp.searchsorted(query_start_loc[1:], at, side="right", method="scan_unrolled")
    counts = sequence < distribution[2]
    sequence = jnp.minimum(sequence, kv_lens.shape[0] - 1)
    position = kv_lens[sequence] - query_start_loc[sequence + 1] + at
    page = jnp.take_along_axis(table[sequence], position[:, None] // page_size, axis=1, mode="clip")[:, 0]
    page = jnp.where(counts & (position >= 0), page, pages)
    new = [
        jnp.pad(x, ((0, 0), (0, pad))).astype(kv_cache.dtype)
        for x, pad in zip((keys_values, keys_pe), pads, strict=True)
    ]
    flat = jnp.asarray(kv_cache).reshape(pages, page_size, width)
    flat = flat.at[page, position % page_size].set(jnp.concatenate(new, axis=-1), mode="drop")
    scale = (latent + rotary) ** -0.5 if softmax_scale is None else softmax_scale
    for factor in (q_scale, k_scale):
        scale = scale if factor is None else scale * factor
    queries = (queries_nope, queries_pe)
    q_latent, q_rope = (jnp.pad(x, ((0, 0), (0, 0), (0, pad))) for x, pad in zip(queries, pads, strict=True))
    out = attn_tune.mla_ragged(
        q_latent,
        q_rope,
        flat,
        kv_lens,
        query_start_loc,
        table,
        num_seqs=distribution[2],
        softmax_scale=scale,
        sliding_window=window_before(name, sliding_window),
        logits_soft_cap=logits_soft_cap,
        platform=kernel_of(name, platform, cfg),
    )[..., :latent]
    out = out if v_scale is None else (out * v_scale).astype(out.dtype)
    return out, flat.reshape(kv_cache.shape)


multi_latent_ragged_page_attention_v2 = multi_latent_ragged_page_attention
