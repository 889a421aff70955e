"""The public ``paged_decode``: new tokens of each sequence over a cache."""

from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from attn_tune.api.call import run
from attn_tune.api.serving.cache_attention import cache_call, check_query_dtype, over_cache
from attn_tune.ops.fields.arguments import check_array, check_not_empty, checked_flag
from attn_tune.ops.fields.cache_arguments import check_integers, first_sequences
from attn_tune.ops.paged_decode.operands import Operands
from attn_tune.ops.paged_decode.problem import MOST_QUERIES, NAME, Problem
from attn_tune.ops.workloads import LENGTHS
from attn_tune.schema.errors import UsageError

_ROWS = (("b", "batch"), ("t", "q_len"))


def paged_decode(
    query: Float[Array, "..."],
    k_pages: Array,
    v_pages: Array | None,
    kv_lens: Int[Array, " B"],
    page_table: Int[Array, "B pages"] | None = None,
    *,
    num_seqs: int | Int[Array, ""] | None = None,
    layout: str = "nhd",
    sliding_window: int | None = None,
    softmax_scale: float | None = None,
    logits_soft_cap: float | None = None,
    softmax_aux: Float[Array, "..."] | None = None,
    k_scale: Float[Array, "..."] | float | None = None,
    v_scale: Float[Array, "..."] | float | None = None,
    max_kv_len: int | None = None,
    workload: str = "eq",
    return_lse: bool = False,
    platform: str | Mapping[str, str | None] | None = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Sequence[PartitionSpec | None] | None = None,
    out_specs: PartitionSpec | None = None,
) -> Any:
    """Attention of the new tokens of each sequence over a cache that holds them already.

    The last query of a sequence stands at its last token, and each query sees the tokens up to its own. The cache is
    read only (write it before, see ``docs/serving.md``). What no query sees may be anything: tokens behind a sequence,
    unused pages, and entries of the page table that name no page. There is no derivative.

    Args:
      query: ``[B, N, H]``, one new token of each sequence, or ``[B, T, N, H]``, one to eight.
      k_pages: keys in pages of ``P`` tokens, by ``layout``: ``nhd`` [pages, P, K, H], ``hnd`` [pages, K, P, H],
        ``head_first`` [K, pages, P, H]; of ``interleaved`` [pages, P, 2 K, H] keys at even heads and values at odd
        ones. Without ``page_table`` a page is a whole sequence: ``nhd`` is [B, S, K, H].
      v_pages: values, likewise with their own width ``V``; None for ``interleaved``.
      kv_lens: int32 tokens of each sequence in the cache, new ones included. None below 0 or above what its row of the
        table holds is counted as 0 or that; a sequence of 0 has zeros as its output.
      page_table: int32 ``[B, pages of a sequence]``; page ``i`` holds the tokens from ``i * P`` on. None: no pages.
      num_seqs: sequences from this one on are empty.
      sliding_window: the number of tokens before its own that a query sees; None is all.
      softmax_scale: default ``1/sqrt(H)``.
      logits_soft_cap: logits become ``cap * tanh(logits / cap)``.
      softmax_aux: attention sinks, as in ``flash_attention``: below plus infinity; minus infinity is no sink.
      k_scale: float32, of a cache of float8_e4m3fn or int8 codes, which it multiplies: one number, ``[K]``, or
        one for each token and head, with the axes of ``k_pages`` but the last (``interleaved``: [pages, P, K]).
        Those that are read must be positive and finite. None with a cache of float8_e4m3fn: 1. int8 needs it.
      v_scale: the same of the values; given with ``k_scale``, of the same kind.
      max_kv_len: the longest sequence to expect, which chooses the config; longer ones are right too. Default: what a
        row of the table holds.
      workload: the profile of lengths to expect, which chooses the config: ``eq``, ``uni``, ``exp`` or ``one``.
      return_lse: return ``(out, lse)``.
      platform: the kernel to use, as in ``flash_attention``.
      cfg: the config to use, as in ``flash_attention``.
      mesh: run under ``shard_map``, as in ``flash_attention``: over heads and, of a contiguous cache, sequences.
      in_specs: the specs of query (4-D), keys and values on ``mesh``.
      out_specs: the spec of the output.

    Returns:
      ``out``, like ``query`` with values' width. With ``return_lse`` also the natural logarithm of the softmax's
      denominator, ``[B, N]`` or ``[B, T, N]`` in float32, sinks included; where nothing is seen theirs alone, or
      minus infinity.

    Raises:
      UsageError: an argument is malformed; the message names it.
      UnsupportedError: no kernel can do this here, or not the requested one; or a derivative is asked for.
    """
    q = check_not_empty("query", check_array("query", query))
    if q.ndim not in (3, 4):
        raise UsageError(f"query must be [B, N, H] or [B, T, N, H], got shape {q.shape}")
    check_query_dtype(q)
    return decoded(
        q,
        (k_pages, v_pages),
        kv_lens,
        page_table,
        num_seqs=num_seqs,
        return_lse=return_lse,
        place={"platform": platform, "cfg": cfg, "mesh": mesh, "in_specs": in_specs, "out_specs": out_specs},
        layout=layout,
        sliding_window=sliding_window,
        softmax_scale=softmax_scale,
        logits_soft_cap=logits_soft_cap,
        softmax_aux=softmax_aux,
        k_scale=k_scale,
        v_scale=v_scale,
        max_kv_len=max_kv_len,
        workload=workload,
    )


def decoded(
    query: Array,
    caches: tuple[Any, Any],
    kv_lens: Any,
    page_table: Any,
    *,
    num_seqs: Any,
    return_lse: bool,
    place: Mapping[str, Any],
    **options: Any,
) -> Any:
    """The result of ``paged_decode`` for a query that was checked, ``[B, N, H]`` or ``[B, T, N, H]``.

    Args:
      place: the arguments of ``run`` that say by which kernel and on which devices.
      options: those of ``over_cache``.

    Raises:
      UsageError: as ``paged_decode``.
    """
    is_single, name = query.ndim == 3, "q_latent" if "latent_dim" in options else "query"
    q = query[:, None] if is_single else query
    if not 1 <= q.shape[1] <= MOST_QUERIES:
        raise UsageError(f"{name} has {q.shape[1]} new tokens of a sequence; at most {MOST_QUERIES} are decoding")
    return_lse = checked_flag("return_lse", return_lse)
    batch, layout = q.shape[0], options["layout"]
    lengths = first_sequences(num_seqs, check_integers("kv_lens", kv_lens, (batch,), name))
    attributes, arrays = over_cache(q, *caches, page_table, batch, LENGTHS, **options)
    problem, operands = Problem(q_len=q.shape[1], **attributes), Operands(kv_lens=lengths, **arrays)
    outputs = run(
        cache_call(NAME, _ROWS, layout, has_pages=problem.page_size > 0, kv_scale=problem.kv_scale, doing="decoding"),
        problem,
        operands,
        **place,
    )
    out, lse = (x[:, 0] if is_single else x for x in (outputs["out"], outputs["lse"]))
    return (out, lse) if return_lse else out
