"""Attention of ejkernel over caches in pages that hold the new tokens already, or get them in two arrays."""

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

MASK_VALUE = -2.381976426469702e38


def page_attention(
    query: Float[Array, "B N H"],
    key_cache: Float[Array, "pages K P H"],
    value_cache: Float[Array, "pages K P H"],
    context_lens: Int[Array, " B"],
    block_tables: Int[Array, "B pages_of_one"],
    /,
    *,
    attn_scale: float | None = None,
    max_context_len: int | None = None,
    num_splits: int = 0,
    mask_value: float = MASK_VALUE,
    attn_logits_soft_cap: float | None = None,
    pages_per_compute_block: int | None = None,
    megacore_mode: str | None = None,
    inline_seq_dim: bool = True,
    sliding_window: int | None = None,
    platform: str | None = None,
    cfg: Any = None,
) -> Float[Array, "B N H"]:
    """``attn_tune.paged_decode`` of layout ``hnd`` by the arguments of ``ejkernel.modules.page_attention``.

    The window is honoured, which ejkernel's Triton and XLA kernels do not read. Caches of ejkernel's TPU kernel,
    ``[K, pages, P, H]``, are those of layout ``head_first``: call ``attn_tune.paged_decode``.

    Args:
      query: ``[B, N, H]``, one token of each sequence.
      key_cache, value_cache: ``[pages, K, P, H]``.
      context_lens: int32 ``[B]``, the new token included.
      block_tables: int32 ``[B, pages of a sequence]``.
      max_context_len: the longest sequence to expect; it chooses the config.
      sliding_window: the tokens that a query sees, its own included.
      num_splits, pages_per_compute_block, megacore_mode, inline_seq_dim: left out with a warning.

    Raises:
      UsageError: an argument is malformed or cannot be honoured.
    """
    name = "page_attention"
    check_mask_value(name, mask_value)
    leave_out(
        name,
        num_splits=num_splits or None,
        pages_per_compute_block=pages_per_compute_block,
        megacore_mode=megacore_mode,
        inline_seq_dim=None if inline_seq_dim else "False",
    )
    return attn_tune.paged_decode(
        query,
        key_cache,
        value_cache,
        context_lens,
        block_tables,
        layout="hnd",
        sliding_window=window_before(name, sliding_window),
        softmax_scale=attn_scale,
        logits_soft_cap=attn_logits_soft_cap,
        max_kv_len=max_context_len,
        platform=kernel_of(name, platform, cfg),
    )


def prefill_page_attention(
    query: Float[Array, "T N H"],
    key_cache: Float[Array, "K pages P H"],
    value_cache: Float[Array, "K pages P H"],
    context_len: Int[Array, "1"],
    page_indices: Int[Array, " pages_of_one"],
    /,
    *,
    softmax_scale: float | None = None,
    mask_value: float = MASK_VALUE,
    attn_logits_soft_cap: float | None = None,
    sliding_window: int | None = None,
    platform: str | None = None,
    cfg: Any = None,
) -> Float[Array, "T N H"]:
    """``attn_tune.ragged_paged`` of one sequence, by the arguments of ``ejkernel.modules.prefill_page_attention``.

    The last query stands at the last token.

    Args:
      query: ``[T, N, H]``, a chunk of one prompt.
      key_cache, value_cache: ``[K, pages, P, H]``, layout ``head_first``.
      context_len: int32 ``[1]``, the chunk included.
      page_indices: int32 ``[pages of the sequence]``.
      sliding_window: the tokens that a query sees, its own included.

    Raises:
      UsageError: an argument is malformed or cannot be honoured.
    """
    name = "prefill_page_attention"
    check_mask_value(name, mask_value)
    return attn_tune.ragged_paged(
        query,
        key_cache,
        value_cache,
        context_len,
        jnp.array([0, query.shape[0]], jnp.int32),
        page_indices[None],
        layout="head_first",
        sliding_window=window_before(name, sliding_window),
        softmax_scale=softmax_scale,
        logits_soft_cap=attn_logits_soft_cap,
        platform=kernel_of(name, platform, cfg),
    )


def ragged_page_attention_v2(
    queries: Float[Array, "tokens N H"],
    kv_pages: Float[Array, "pages P heads H"],
    context_lens: Int[Array, " B"],
    block_tables: Int[Array, "B pages_of_one"],
    query_start_loc: Int[Array, " ends"],
    num_seqs: Int[Array, "..."] | int,
    softmax_aux: Float[Array, " N"] | None = None,
    /,
    *,
    softmax_scale: float | None = None,
    logits_soft_cap: float | None = None,
    compute_dtype: Any = jnp.bfloat16,
    optimized: bool = False,
    sliding_window: int | tuple[int, int] | None = None,
    mask_value: float | None = None,
    vmem_limit_bytes: int | None = None,
    platform: str | None = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Specs = None,
    out_specs: PartitionSpec | None = None,
) -> Float[Array, "tokens N H"]:
    """``attn_tune.ragged_paged`` of layout ``interleaved``, by the arguments of ejkernel's function of this name.

    ``ragged_page_attention``, the name of older versions, is this function too. Products are those of the arrays'
    dtype, where ejkernel rounds float32 to its default ``compute_dtype``. Sinks count, which ejkernel's Triton kernel
    does not read.

    Args:
      queries: ``[tokens, N, H]``, those of one sequence after the other.
      kv_pages: ``[pages, P, 2 K, H]``, keys at even heads and values at odd ones.
      context_lens: int32 ``[B]``, new tokens included.
      block_tables: int32 ``[B, pages of a sequence]``.
      query_start_loc: int32 ``[B + 1]``.
      num_seqs: how many sequences count, a number or int32 ``[1]``.
      softmax_aux: one sink a query head.
      compute_dtype: bfloat16, or the dtype of ``queries``; others are refused.
      sliding_window: the tokens that a query sees, its own included; of a pair the left one.
      optimized, vmem_limit_bytes: left out with a warning.
      mesh, in_specs, out_specs: refused.

    Raises:
      UsageError: an argument is malformed or cannot be honoured.
    """
    name = "ragged_page_attention_v2"
    refuse_mesh(name, mesh, in_specs, out_specs)
    check_mask_value(name, mask_value)
    leave_out(name, optimized=optimized, vmem_limit_bytes=vmem_limit_bytes)
    if compute_dtype is not None and jnp.dtype(compute_dtype) not in (jnp.dtype(jnp.bfloat16), queries.dtype):
        raise UsageError(f"{name}: compute_dtype must be that of queries, {queries.dtype}; cast queries and kv_pages")
    return attn_tune.ragged_paged(
        queries,
        kv_pages,
        None,
        context_lens,
        query_start_loc,
        block_tables,
        num_seqs=num_seqs if isinstance(num_seqs, int) else jnp.reshape(num_seqs, ()),
        layout="interleaved",
        sliding_window=window_before(name, sliding_window[0] if isinstance(sliding_window, tuple) else sliding_window),
        softmax_scale=softmax_scale,
        logits_soft_cap=logits_soft_cap,
        softmax_aux=softmax_aux,
        platform=kernel_of(name, platform, cfg),
    )


ragged_page_attention = ragged_page_attention_v2


def unified_attention(
    queries: Float[Array, "tokens N H"],
    key_cache: Float[Array, "pages P K H"],
    value_cache: Float[Array, "pages P K H"],
    kv_lens: Int[Array, " B"],
    block_tables: Int[Array, "B pages_of_one"],
    query_start_loc: Int[Array, " ends"],
    alibi_slopes: Float[Array, " N"] | None = None,
    qq_bias: Float[Array, "T T"] | None = None,
    softmax_aux: Float[Array, " N"] | None = None,
    /,
    *,
    softmax_scale: float | None = None,
    causal: bool = True,
    sliding_window: int | None = None,
    logits_soft_cap: float | None = None,
    seq_threshold_3d: int | None = None,
    platform: str | None = None,
    mesh: Mesh | None = None,
    in_specs: Specs = None,
    out_specs: PartitionSpec | None = None,
    cfg: Any = None,
) -> Float[Array, "tokens N H"]:
    """``attn_tune.ragged_paged`` of layout ``nhd`` by the arguments of ``ejkernel.modules.unified_attention``.

    Args:
      queries: ``[tokens, N, H]``, those of one sequence after the other.
      key_cache, value_cache: ``[pages, P, K, H]``.
      kv_lens: int32 ``[B]``, new tokens included.
      block_tables: int32 ``[B, pages of a sequence]``.
      query_start_loc: int32 ``[B + 1]``.
      alibi_slopes, qq_bias: refused: no kernel over pages adds to logits.
      softmax_aux: one sink a query head.
      causal: False sees all keys of a sequence, which ejkernel itself refuses.
      sliding_window: the tokens that a query sees, its own included.
      seq_threshold_3d: left out with a warning.
      mesh, in_specs, out_specs: refused.

    Raises:
      UsageError: an argument is malformed or cannot be honoured.
    """
    name = "unified_attention"
    refuse(
        name,
        "call flash_attention with a bias over gathered keys",
        alibi_slopes=alibi_slopes,
        qq_bias=qq_bias,
    )
    refuse_mesh(name, mesh, in_specs, out_specs)
    leave_out(name, seq_threshold_3d=seq_threshold_3d)
    return attn_tune.ragged_paged(
        queries,
        key_cache,
        value_cache,
        kv_lens,
        query_start_loc,
        block_tables,
        causal=causal,
        sliding_window=window_before(name, sliding_window),
        softmax_scale=softmax_scale,
        logits_soft_cap=logits_soft_cap,
        softmax_aux=softmax_aux,
        platform=kernel_of(name, platform, cfg),
    )


def chunked_prefill_paged_decode(
    queries: Float[Array, "tokens N H"],
    keys: Float[Array, "tokens K H"],
    values: Float[Array, "tokens K H"],
    key_cache: Float[Array, "pages P K H"],
    value_cache: Float[Array, "pages P K H"],
    kv_lens: Int[Array, " B"],
    block_tables: Int[Array, "B pages_of_one"],
    query_start_loc: Int[Array, " ends"],
    alibi_slopes: Float[Array, " N"] | None = None,
    softmax_aux: Float[Array, " N"] | None = None,
    /,
    *,
    softmax_scale: float | None = None,
    causal: bool = True,
    sliding_window: int | None = None,
    logits_soft_cap: float | None = None,
    seq_threshold_3d: int | None = None,
    num_par_softmax_segments: int | None = None,
    platform: str | None = None,
    mesh: Mesh | None = None,
    in_specs: Specs = None,
    out_specs: Sequence[PartitionSpec] | None = None,
    cfg: Any = None,
) -> tuple[Float[Array, "tokens N H"], Float[Array, "pages P K H"], Float[Array, "pages P K H"]]:
    """``attn_tune.paged_append``, then ``ragged_paged``: ``(out, key_cache, value_cache)`` as ejkernel returns them.

    Donate the caches under ``jax.jit``, and they are written in place.

    Args:
      queries, keys, values: ``[tokens, N, H]`` and ``[tokens, K, H]`` twice, those of one sequence after the other.
      key_cache, value_cache: ``[pages, P, K, H]``.
      kv_lens: int32 ``[B]``, new tokens included.
      block_tables: int32 ``[B, pages of a sequence]``.
      query_start_loc: int32 ``[B + 1]``.
      alibi_slopes: refused.
      causal: True; False is refused, as in ejkernel.
      seq_threshold_3d, num_par_softmax_segments: left out with a warning.
      mesh, in_specs, out_specs: refused.

    Raises:
      UsageError: an argument is malformed or cannot be honoured.
    """
    name = "chunked_prefill_paged_decode"
    refuse(name, "call flash_attention with a bias over gathered keys", alibi_slopes=alibi_slopes)
    refuse_mesh(name, mesh, in_specs, out_specs)
    if not causal:
        raise UsageError(f"{name}: causal=False cannot be honoured; append, then call unified_attention")
    leave_out(name, seq_threshold_3d=seq_threshold_3d, num_par_softmax_segments=num_par_softmax_segments)
    cache = attn_tune.paged_append(
        keys, values, key_cache, value_cache, kv_lens, block_tables, cu_q_lens=query_start_loc
    )
    out = unified_attention(
        queries,
        cache.k_pages,
        cache.v_pages,  # pyright: ignore[reportArgumentType]
        kv_lens,
        block_tables,
        query_start_loc,
        None,
        None,
        softmax_aux,
        softmax_scale=softmax_scale,
        sliding_window=sliding_window,
        logits_soft_cap=logits_soft_cap,
        platform=platform,
        cfg=cfg,
    )
    return out, cache.k_pages, cache.v_pages  # pyright: ignore[reportReturnType]


def decode_attention(
    query: Float[Array, "B N H"],
    key_buffer: Float[Array, "slots K H"],
    value_buffer: Float[Array, "slots K H"],
    req_to_tokens: Int[Array, "B pages_of_one"],
    seq_lens: Int[Array, " B"],
    /,
    *,
    softmax_scale: float | None = None,
    num_kv_splits: int | None = None,
    page_size: int = 1,
    logits_soft_cap: float | None = None,
    platform: str | None = None,
    mesh: Mesh | None = None,
    in_specs: Specs = None,
    out_specs: Sequence[PartitionSpec] | None = None,
    cfg: Any = None,
) -> tuple[Float[Array, "B N H"], Float[Array, "B N"]]:
    """``attn_tune.paged_decode`` over SGLang's pool of tokens: ``(out, lse)``, the natural lse in float32.

    Args:
      query: ``[B, N, H]``, one token of each sequence.
      key_buffer, value_buffer: ``[tokens of the pool, K, H]``, which are pages of ``page_size`` tokens here.
      req_to_tokens: int32 ``[B, pages of a sequence]``, numbers of pages.
      seq_lens: int32 ``[B]``, the new token included.
      num_kv_splits: left out with a warning.
      mesh, in_specs, out_specs: refused.

    Raises:
      UsageError: an argument is malformed or cannot be honoured.
    """
    name = "decode_attention"
    refuse_mesh(name, mesh, in_specs, out_specs)
    leave_out(name, num_kv_splits=num_kv_splits)
    slots = key_buffer.shape[0]
    if page_size < 1 or slots % page_size:
        raise UsageError(f"{name}: page_size must divide the {slots} tokens of key_buffer, got {page_size}")
    k_pages, v_pages = (x.reshape(slots // page_size, page_size, *x.shape[1:]) for x in (key_buffer, value_buffer))
    return attn_tune.paged_decode(
        query,
        k_pages,
        v_pages,
        seq_lens,
        req_to_tokens,
        softmax_scale=softmax_scale,
        logits_soft_cap=logits_soft_cap,
        platform=kernel_of(name, platform, cfg),
        return_lse=True,
    )
