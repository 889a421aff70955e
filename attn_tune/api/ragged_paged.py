"""The public ``ragged_paged``: new tokens of each sequence, as many as it has, over a cache."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from attn_tune.api.call import run
from attn_tune.api.declaration import Call
from attn_tune.ops.fields.arguments import DTYPES, static_float
from attn_tune.ops.fields.cache import SAME, sizes_of
from attn_tune.ops.fields.cache_arguments import (
    cache_letters,
    check_array,
    check_caches,
    check_count,
    check_expected,
    check_heads,
    check_integers,
    check_scales,
    check_window,
    remedy,
)
from attn_tune.ops.fields.sinks import sinks_of
from attn_tune.ops.ragged_paged.operands import Operands
from attn_tune.ops.ragged_paged.problem import NAME, WORKLOADS, Problem
from attn_tune.schema.errors import UsageError


def _outputs(problem: Problem, operands: Operands) -> dict[str, jax.ShapeDtypeStruct]:
    rows = operands.q.shape[:2]
    width = operands.q.shape[2] if operands.v is None else operands.v.shape[-1]
    return {
        "out": jax.ShapeDtypeStruct((*rows, width), operands.q.dtype),
        "lse": jax.ShapeDtypeStruct(rows, jnp.float32),
    }


def _with_shapes(problem: Problem, operands: Operands) -> Problem:
    tokens, num_q_heads, _ = operands.q.shape
    heads = sizes_of(problem.layout, operands.k.shape)["head"]
    return dataclasses.replace(problem, tokens=tokens, num_q_heads=num_q_heads, num_kv_heads=heads)


@functools.cache
def _call(layout: str, has_pages: bool, kv_scale: str) -> Call:
    """The call of a layout. Queries of all sequences are on one axis: heads alone are cut."""
    is_joint = layout == "interleaved"
    cache = cache_letters(layout, is_paged=has_pages)
    scale = {"none": "", "tensor": "", "head": "k", "token": cache}[kv_scale]
    whole = remedy(layout, cuts_sequences=False)
    return Call(
        op=NAME,
        letters={
            "q": "tnh",
            # Keys and values of a head side by side on one axis, which is cut in pairs only.
            "k": cache.replace("k", "j") + "h" if is_joint else cache + "h",
            "v": cache + "v",
            "page_table": "bm",
            "kv_lens": "b",
            "cu_q_lens": "e",
            "sinks": "n",
            "k_scale": scale,
            "v_scale": scale,
            "out": "tnh" if is_joint else "tnv",
            "lse": "tn",
        },
        main={"q": "query", "k": "k_pages"} if is_joint else {"q": "query", "k": "k_pages", "v": "v_pages"},
        outputs=_outputs,
        with_shapes=_with_shapes,
        parallel=() if is_joint else ("n",),
        groups={} if is_joint else {"n": "k"},
        words={"b": "batch", "t": "new tokens", "n": "query heads", "k": "key/value heads", "j": "key/value heads"}
        | {"p": "pages", "s": "tokens", "h": "head dim", "v": "head dim", "m": "page table", "e": "cu_q_lens"},
        remedies=dict.fromkeys("btpshvmnjke", whole),
        unfoldable=("q",),
        alternative="attention over a cache has no derivative; train with attn_tune.flash_attention",
    )


def ragged_paged(
    query: Float[Array, "tokens N H"],
    k_pages: Array,
    v_pages: Array | None,
    kv_lens: Int[Array, " B"],
    cu_q_lens: Int[Array, " ends"],
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
        anything; the output there is zero.
      k_pages: keys in pages of ``P`` tokens, by ``layout``: ``nhd`` [pages, P, K, H], ``hnd`` [pages, K, P, H],
        ``head_first`` [K, pages, P, H]; of ``interleaved`` [pages, P, 2 K, H] keys at even heads and values at odd
        ones. Without ``page_table`` a page is a whole sequence: ``nhd`` is [B, S, K, H].
      v_pages: values, likewise with their own width ``V``; None for ``interleaved``.
      kv_lens: int32 tokens of each sequence in the cache, new ones included. None below 0 or above what its row of the
        table holds is counted as 0 or that.
      cu_q_lens: int32 ``[B + 1]``: 0, then the end of each sequence in ``query``; it never falls.
      page_table: int32 ``[B, pages of a sequence]``; page ``i`` holds the tokens from ``i * P`` on. None: no pages.
      num_seqs: sequences from this one on are empty, and nothing of theirs counts.
      sliding_window: the number of tokens before its own that a query sees; None is all.
      softmax_scale: default ``1/sqrt(H)``.
      logits_soft_cap: logits become ``cap * tanh(logits / cap)``.
      softmax_aux: attention sinks, as in ``flash_attention``.
      k_scale: float32, of a cache of float8_e4m3fn or int8 codes, which it multiplies: one number, ``[K]``, or
        one for each token and head, with the axes of ``k_pages`` but the last (``interleaved``: [pages, P, K]).
      v_scale: the same of the values; given with ``k_scale``, of the same kind.
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
      ``out``, like ``query`` with values' width. With ``return_lse`` also the natural logarithm of the softmax's
      denominator, ``[tokens, N]`` in float32, sinks included; minus infinity where nothing is seen.

    Raises:
      UsageError: an argument is malformed; the message names it.
      UnsupportedError: no kernel can do this here, or not the requested one; or a derivative is asked for.
    """
    q = check_array("query", query)
    if q.ndim != 3 or 0 in q.shape:
        raise UsageError(f"query must be [tokens, N, H], got shape {q.shape}")
    if q.dtype.name not in DTYPES:
        raise UsageError(f"query must have dtype {', '.join(DTYPES)}, got {q.dtype}")
    lengths = check_array("kv_lens", kv_lens)
    if lengths.ndim != 1:
        raise UsageError(f"kv_lens must be integers [B], got {lengths.dtype}{list(lengths.shape)}")
    batch = lengths.shape[0]
    lengths = check_integers("kv_lens", lengths, (batch,))
    # Ends beyond the queries would be written beyond the output.
    ends = jnp.clip(check_integers("cu_q_lens", cu_q_lens, (batch + 1,)), 0, q.shape[0])
    if num_seqs is not None:
        count = check_count("num_seqs", num_seqs)
        lengths = jnp.where(jnp.arange(batch) < count, lengths, 0)
        ends = jnp.where(jnp.arange(batch + 1) <= count, ends, ends[jnp.clip(count, 0, batch)])
    whole = None if page_table is not None else batch
    k, v = check_caches(k_pages, v_pages, layout, dtype=q.dtype, whose="the query", sequences=whole)
    check_heads(q, k, layout)
    sizes = sizes_of(layout, k.shape)
    table = None
    if page_table is not None:
        table = check_integers("page_table", page_table, (batch, None))
    capacity = sizes["slot"] * (1 if table is None else table.shape[1])
    kv_dtype = SAME if k.dtype == q.dtype else k.dtype.name
    kv_scale, scales = check_scales(kv_dtype, layout, k, (k_scale, v_scale))
    check_expected(workload, WORKLOADS, max_kv_len)
    problem = Problem(
        batch=batch,
        tokens=q.shape[0],
        kv_len=min(capacity, max_kv_len or capacity),
        num_q_heads=q.shape[1],
        num_kv_heads=sizes["head"],
        head_dim=q.shape[2],
        v_head_dim=q.shape[2] if v is None else v.shape[-1],
        page_size=0 if table is None else sizes["slot"],
        layout=layout,
        dtype=q.dtype.name,
        kv_dtype=kv_dtype,
        kv_scale=kv_scale,
        window=check_window(sliding_window),
        has_sinks=softmax_aux is not None,
        soft_cap=None if logits_soft_cap is None else static_float("logits_soft_cap", logits_soft_cap),
        scale=1 / math.sqrt(q.shape[2]) if softmax_scale is None else static_float("softmax_scale", softmax_scale),
        workload=workload,
    )
    operands = Operands(
        q=q,
        k=k,
        v=v,
        page_table=table,
        kv_lens=lengths,
        cu_q_lens=ends,
        sinks=None if softmax_aux is None else sinks_of(softmax_aux, q.shape[1], sizes["head"]),
        k_scale=scales[0],
        v_scale=scales[1],
    )
    outputs = run(
        _call(layout, table is not None, kv_scale),
        problem,
        operands,
        platform=platform,
        cfg=cfg,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
    )
    return (outputs["out"], outputs["lse"]) if return_lse else outputs["out"]
