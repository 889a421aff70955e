"""The public ``paged_decode``: new tokens of each sequence over a cache."""

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
from attn_tune.ops.paged_decode.operands import Operands
from attn_tune.ops.paged_decode.problem import MOST_QUERIES, NAME, Problem
from attn_tune.ops.workloads import LENGTHS
from attn_tune.schema.errors import UsageError


def _outputs(problem: Problem, operands: Operands) -> dict[str, jax.ShapeDtypeStruct]:
    rows = operands.q.shape[:3]
    width = operands.q.shape[3] if operands.v is None else operands.v.shape[-1]
    return {
        "out": jax.ShapeDtypeStruct((*rows, width), operands.q.dtype),
        "lse": jax.ShapeDtypeStruct(rows, jnp.float32),
    }


def _with_shapes(problem: Problem, operands: Operands) -> Problem:
    batch, q_len, num_q_heads, _ = operands.q.shape
    heads = sizes_of(problem.layout, operands.k.shape)["head"]
    return dataclasses.replace(problem, batch=batch, q_len=q_len, num_q_heads=num_q_heads, num_kv_heads=heads)


@functools.cache
def _call(layout: str, has_pages: bool, kv_scale: str) -> Call:
    """The call of a layout. Pages belong to no sequence: of a paged cache heads alone are cut."""
    is_joint = layout == "interleaved"
    cache = cache_letters(layout, is_paged=has_pages)
    scale = {"none": "", "tensor": "", "head": "k", "token": cache}[kv_scale]
    whole = remedy(layout, cuts_sequences=not has_pages)
    return Call(
        op=NAME,
        letters={
            "q": "btnh",
            # Keys and values of a head side by side on one axis, which is cut in pairs only.
            "k": cache.replace("k", "j") + "h" if is_joint else cache + "h",
            "v": cache + "v",
            "page_table": "bm",
            "kv_lens": "b",
            "sinks": "n",
            "k_scale": scale,
            "v_scale": scale,
            "out": "btnh" if is_joint else "btnv",
            "lse": "btn",
        },
        main={"q": "query", "k": "k_pages"} if is_joint else {"q": "query", "k": "k_pages", "v": "v_pages"},
        outputs=_outputs,
        with_shapes=_with_shapes,
        parallel=(() if has_pages else ("b",)) + (() if is_joint else ("n",)),
        groups={} if is_joint else {"n": "k"},
        words={"b": "batch", "t": "new tokens", "n": "query heads", "k": "key/value heads", "j": "key/value heads"}
        | {"p": "pages", "s": "tokens", "h": "head dim", "v": "head dim", "m": "page table"},
        remedies=dict.fromkeys("btpshvmnjk", whole),
        unfoldable=("q",),
        alternative="decoding has no derivative; train with attn_tune.flash_attention",
    )


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
      softmax_aux: attention sinks, as in ``flash_attention``.
      k_scale: float32, of a cache of float8_e4m3fn or int8 codes, which it multiplies: one number, ``[K]``, or
        one for each token and head, with the axes of ``k_pages`` but the last (``interleaved``: [pages, P, K]).
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
      denominator, ``[B, N]`` or ``[B, T, N]`` in float32, sinks included; minus infinity where nothing is seen.

    Raises:
      UsageError: an argument is malformed; the message names it.
      UnsupportedError: no kernel can do this here, or not the requested one; or a derivative is asked for.
    """
    q, k, v = _checked(query, k_pages, v_pages, layout, page_table)
    sizes = sizes_of(layout, k.shape)
    batch = q.shape[0]
    lengths = check_integers("kv_lens", kv_lens, (batch,))
    if num_seqs is not None:
        lengths = jnp.where(jnp.arange(batch) < check_count("num_seqs", num_seqs), lengths, 0)
    table = None
    if page_table is not None:
        table = check_integers("page_table", page_table, (batch, None))
    capacity = sizes["slot"] * (1 if table is None else table.shape[1])
    kv_dtype = SAME if k.dtype == q.dtype else k.dtype.name
    kv_scale, scales = check_scales(kv_dtype, layout, k, (k_scale, v_scale))
    check_expected(workload, LENGTHS, max_kv_len)
    problem = Problem(
        batch=batch,
        q_len=q.shape[1],
        kv_len=min(capacity, max_kv_len or capacity),
        num_q_heads=q.shape[2],
        num_kv_heads=sizes["head"],
        head_dim=q.shape[3],
        v_head_dim=q.shape[3] if v is None else v.shape[-1],
        page_size=0 if table is None else sizes["slot"],
        layout=layout,
        dtype=q.dtype.name,
        kv_dtype=kv_dtype,
        kv_scale=kv_scale,
        window=check_window(sliding_window),
        has_sinks=softmax_aux is not None,
        soft_cap=None if logits_soft_cap is None else static_float("logits_soft_cap", logits_soft_cap),
        scale=1 / math.sqrt(q.shape[3]) if softmax_scale is None else static_float("softmax_scale", softmax_scale),
        workload=workload,
    )
    operands = Operands(
        q=q,
        k=k,
        v=v,
        page_table=table,
        kv_lens=lengths,
        sinks=None if softmax_aux is None else sinks_of(softmax_aux, q.shape[2], sizes["head"]),
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
    out, lse = (x if query.ndim == 4 else x[:, 0] for x in (outputs["out"], outputs["lse"]))
    return (out, lse) if return_lse else out


def _checked(
    query: Array, k_pages: Array, v_pages: Array | None, layout: str, page_table: Array | None
) -> tuple[Array, Array, Array | None]:
    """The 4-D query and the caches, of one another's sizes."""
    q = check_array("query", query)
    if q.ndim not in (3, 4):
        raise UsageError(f"query must be [B, N, H] or [B, T, N, H], got shape {q.shape}")
    q = q if q.ndim == 4 else q[:, None]
    if q.dtype.name not in DTYPES:
        raise UsageError(f"query must have dtype {', '.join(DTYPES)}, got {q.dtype}")
    if not 1 <= q.shape[1] <= MOST_QUERIES:
        raise UsageError(f"query has {q.shape[1]} new tokens of a sequence; at most {MOST_QUERIES} are decoding")
    whole = None if page_table is not None else q.shape[0]
    k, v = check_caches(k_pages, v_pages, layout, dtype=q.dtype, whose="the query", sequences=whole)
    check_heads(q, k, layout)
    return q, k, v
