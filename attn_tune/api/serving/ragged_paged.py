"""The public ``ragged_paged``: new tokens of each sequence, as many as it has, over a cache."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from attn_tune.api.call import run
from attn_tune.api.serving.cache_attention import cache_call, check_query_codes, over_cache
from attn_tune.ops.fields.arguments import check_array, check_not_empty, checked_flag
from attn_tune.ops.fields.cache_arguments import (
    check_ends,
    check_integers,
    count_sequences,
    first_ends,
    first_sequences,
)
from attn_tune.ops.ragged_paged.operands import Operands
from attn_tune.ops.ragged_paged.problem import NAME, WORKLOADS, Problem
from attn_tune.schema.errors import UsageError

# Queries of all sequences are on one axis, which is never cut.
_ROWS = (("t", "tokens"),)
_DOING = "attention over a cache"


def ragged_paged(
    query: Float[Array, "tokens N H"],
    k_pages: Array,
    v_pages: Array | None,
    kv_lens: Int[Array, " B"],
    cu_q_lens: Int[Array, " ends"],
    page_table: Int[Array, "B pages"] | None = None,
    *,
    num_seqs: int | Int[Array, ""] | None = None,
    causal: bool = True,
    layout: str = "nhd",
    sliding_window: int | None = None,
    softmax_scale: float | None = None,
    logits_soft_cap: float | None = None,
    softmax_aux: Float[Array, "..."] | None = None,
    k_scale: Float[Array, "..."] | float | None = None,
    v_scale: Float[Array, "..."] | float | None = None,
    q_scale: Float[Array, "..."] | float | None = None,
    out_dtype: Any = None,
    max_kv_len: int | None = None,
    workload: str = "eq",
    return_lse: bool = False,
    platform: str | Mapping[str, str | None] | None = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Sequence[PartitionSpec | None] | None = None,
    out_specs: PartitionSpec | None = None,
) -> Any:
    """Attention of the new tokens of each sequence, as many as it has, over a cache that holds them already.

    One call serves a step of a server: sequences that decode one token, prompts, and chunks of prompts. The last query
    of a sequence stands at its last token, and each query sees the tokens up to its own; one that stands before the
    first token sees nothing. The cache is read only (write it before, see ``docs/serving.md``). What no query sees may
    be anything: tokens behind a sequence, unused pages, and entries of the page table that name no page. There is no
    derivative.

    Put sequences that have one new token first: the Triton kernel decodes those in a launch whose programs share their
    keys. It finds on the device how many they are; of others one token is right too.

    Args:
      query: ``[tokens, N, H]``, those of one sequence after the other. From the end of the last sequence on it may hold
        anything; the output there is zero. Over a cache of codes it may be codes of the same dtype, with ``q_scale``;
        their products with keys may be those of 8-bit numbers.
      k_pages: keys in pages of ``P`` tokens, by ``layout``: ``nhd`` [pages, P, K, H], ``hnd`` [pages, K, P, H],
        ``head_first`` [K, pages, P, H]; of ``interleaved`` [pages, P, 2 K, H] keys at even heads and values at odd
        ones. Without ``page_table`` a page is a whole sequence: ``nhd`` is [B, S, K, H].
      v_pages: values, likewise with their own width ``V``; None for ``interleaved``.
      kv_lens: int32 tokens of each sequence in the cache, new ones included. None below 0 or above what its row of the
        table holds is counted as 0 or that.
      cu_q_lens: int32 ``[B + 1]``: 0, then the end of each sequence in ``query``; it never falls.
      page_table: int32 ``[B, pages of a sequence]``; page ``i`` holds the tokens from ``i * P`` on. None: no pages.
      num_seqs: sequences from this one on are empty, and nothing of theirs counts.
      causal: a query sees no token behind its own. False: it sees all of its sequence, and ``kv_lens`` counts keys
        alone, which may be fewer than queries: those of an encoder, or of a prefix that all queries come after.
      sliding_window: the number of tokens before its own that a query sees; None is all.
      softmax_scale: default ``1/sqrt(H)``.
      logits_soft_cap: logits become ``cap * tanh(logits / cap)``.
      softmax_aux: attention sinks, as in ``flash_attention``.
      k_scale: float32, of a cache of float8_e4m3fn or int8 codes, which it multiplies: one number, ``[K]``, or
        one for each token and head, with the axes of ``k_pages`` but the last (``interleaved``: [pages, P, K]).
        Those that are read must be positive and finite. None with a cache of float8_e4m3fn: 1. int8 needs it.
      v_scale: the same of the values; given with ``k_scale``, of the same kind.
      q_scale: float32, of queries that are codes, which it multiplies: one number, or ``[tokens, N]``.
      out_dtype: the output's dtype where queries are codes, by default bfloat16. Of all others it is the queries'.
      max_kv_len: the longest sequence to expect, which chooses the config; longer ones are right too. Default: what a
        row of the table holds.
      workload: the profile of lengths to expect, which chooses the config: ``eq``, ``uni``, ``exp``, ``one``, or
        ``mix`` of sequences that decode and chunks.
      return_lse: return ``(out, lse)``.
      platform: the kernel to use, as in ``flash_attention``.
      cfg: the config to use, as in ``flash_attention``.
      mesh: run under ``shard_map``, as in ``flash_attention``, over heads.
      in_specs: the specs of query, keys and values on ``mesh``.
      out_specs: the spec of the output.

    Returns:
      ``out``, like ``query`` with values' width; of codes in ``out_dtype``. With ``return_lse`` also the natural
      logarithm of the softmax's denominator, ``[tokens, N]`` in float32, sinks included; where nothing is seen theirs
      alone, or minus infinity, which it also is of queries of no sequence.

    Raises:
      UsageError: an argument is malformed; the message names it.
      UnsupportedError: no kernel can do this here, or not the requested one; or a derivative is asked for.
    """
    q = check_array("query", query)
    if check_not_empty("query", q).ndim != 3:
        raise UsageError(f"query must be [tokens, N, H], got shape {q.shape}")
    dtype, scale_kind, scale = check_query_codes(q, k_pages, q_scale, out_dtype)
    return ragged(
        q,
        (k_pages, v_pages),
        (kv_lens, cu_q_lens),
        page_table,
        num_seqs=num_seqs,
        causal=causal,
        q_scale=(scale_kind, scale),
        return_lse=return_lse,
        place={"platform": platform, "cfg": cfg, "mesh": mesh, "in_specs": in_specs, "out_specs": out_specs},
        layout=layout,
        sliding_window=sliding_window,
        softmax_scale=softmax_scale,
        logits_soft_cap=logits_soft_cap,
        softmax_aux=softmax_aux,
        k_scale=k_scale,
        v_scale=v_scale,
        out_dtype=dtype,
        max_kv_len=max_kv_len,
        workload=workload,
    )


def ragged(
    query: Array,
    caches: tuple[Any, Any],
    lengths: tuple[Any, Any],
    page_table: Any,
    *,
    num_seqs: Any,
    causal: bool,
    return_lse: bool,
    place: Mapping[str, Any],
    q_scale: tuple[str, Array | None] = ("none", None),
    **options: Any,
) -> Any:
    """The result of ``ragged_paged`` for a query ``[tokens, N, H]`` that was checked.

    Args:
      lengths: ``kv_lens`` and ``cu_q_lens``.
      place: the arguments of ``run`` that say by which kernel and on which devices.
      q_scale: which parts of queries have a scale, and this scale.
      options: those of ``over_cache``.

    Raises:
      UsageError: as ``ragged_paged``.
    """
    q, (kv_lens, cu_q_lens) = query, lengths
    batch = count_sequences(kv_lens)
    attributes, arrays = over_cache(q, *caches, page_table, batch, WORKLOADS, **options)
    kv_lens = first_sequences(num_seqs, check_integers("kv_lens", kv_lens, (batch,)))
    # Ends beyond the queries would be written beyond the output.
    tokens = q.shape[0]
    ends = check_ends("cu_q_lens", cu_q_lens, (batch + 1,), most=(tokens, "queries"), num_seqs=num_seqs)
    ends = jnp.clip(ends, 0, tokens)
    causal, return_lse = checked_flag("causal", causal), checked_flag("return_lse", return_lse)
    if not causal and (window := options["sliding_window"]) is not None:
        raise UsageError(f"sliding_window={window} counts from a query's own position; leave it out, or causal=False")
    problem = Problem(tokens=tokens, causal=causal, q_scale=q_scale[0], **attributes)
    outputs = run(
        cache_call(
            NAME,
            _ROWS,
            options["layout"],
            has_pages=problem.page_size > 0,
            kv_scale=problem.kv_scale,
            doing=_DOING,
            q_scale=problem.q_scale,
        ),
        problem,
        Operands(kv_lens=kv_lens, cu_q_lens=first_ends(num_seqs, ends), q_scale=q_scale[1], **arrays),
        **place,
    )
    return (outputs["out"], outputs["lse"]) if return_lse else outputs["out"]
