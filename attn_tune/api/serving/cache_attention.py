"""Common part of calls of attention over a cache: declaration, problem and all operands but the queries."""

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attn_tune.api.declaration import Call
from attn_tune.ops.contract import Workload
from attn_tune.ops.fields.arguments import DTYPES, check_array, dtype_name, static_float
from attn_tune.ops.fields.cache import BLOCK, CODES, JOINT, LATENT, LAYOUTS, PACKED, SAME, sizes_of
from attn_tune.ops.fields.cache_arguments import (
    cache_letters,
    check_caches,
    check_heads,
    check_integers,
    check_scales,
    check_window,
    check_workload,
    remedy,
)
from attn_tune.ops.fields.integers import positive_integer
from attn_tune.ops.fields.sinks import sinks_of
from attn_tune.schema.errors import UsageError, shown, unknown_name


@functools.cache
def cache_call(
    op: str,
    rows: tuple[tuple[str, str], ...],
    layout: str,
    *,
    has_pages: bool,
    kv_scale: str,
    doing: str,
    q_scale: str = "none",
) -> Call:
    """The call of a layout. Heads are cut, and sequences where they have axes of their own in queries and cache.

    Args:
      rows: the axes of queries before heads: the letter of each, and the attribute of a problem that is its size.
      doing: what has no derivative, for the message that refuses one.
    """
    is_joint = layout == "interleaved"
    letters = "".join(letter for letter, _ in rows)
    cuts_sequences = not has_pages and "b" in letters
    cache = cache_letters(layout, is_paged=has_pages)
    scale = {"none": "", "tensor": "", "head": "k", "token": cache, BLOCK: ""}[kv_scale]
    whole = remedy(layout, cuts_sequences=cuts_sequences)
    return Call(
        op=op,
        letters={
            "q": f"{letters}nh",
            # Keys and values of a head side by side on one axis, which is cut in pairs only.
            "k": cache.replace("k", "j") + "h" if is_joint else cache + ("w" if kv_scale == BLOCK else "h"),
            "v": cache + "v",
            "page_table": "bm",
            "kv_lens": "b",
            "cu_q_lens": "e",
            "sinks": "n",
            "k_scale": scale,
            "v_scale": scale,
            "q_scale": f"{letters}n" if q_scale == "token" else "",
            "out": f"{letters}nh" if is_joint else f"{letters}nv",
            "lse": f"{letters}n",
        },
        main={"q": "query", "k": "k_pages"} if layout in JOINT else {"q": "query", "k": "k_pages", "v": "v_pages"},
        outputs=_outputs,
        with_shapes=functools.partial(_with_shapes, tuple(name for _, name in rows)),
        parallel=(("b",) if cuts_sequences else ()) + (() if is_joint else ("n",)),
        groups={} if is_joint else {"n": "k"},
        words={"b": "batch", "t": "new tokens", "n": "query heads", "k": "key/value heads", "j": "key/value heads"}
        | {
            "p": "pages",
            "s": "tokens",
            "h": "head dim",
            "v": "head dim",
            "w": "bytes of a token",
            "m": "page table",
            "e": "cu_q_lens",
        },
        remedies=dict.fromkeys("btpshvwmnjke", whole),
        unfoldable=("q",),
        alternative=f"{doing} has no derivative; train with attn_tune.flash_attention",
    )


def _outputs(problem: Any, operands: Any) -> dict[str, jax.ShapeDtypeStruct]:
    rows = operands.q.shape[:-1]
    return {
        "out": jax.ShapeDtypeStruct((*rows, problem.v_head_dim), jnp.dtype(problem.dtype)),
        "lse": jax.ShapeDtypeStruct(tuple(rows), jnp.float32),
    }


def _with_shapes(names: tuple[str, ...], problem: Any, operands: Any) -> Any:
    *rows, num_q_heads, _ = operands.q.shape
    heads = sizes_of(problem.layout, operands.k.shape)["head"]
    sizes = dict(zip(names, rows, strict=True))
    return dataclasses.replace(problem, **sizes, num_q_heads=num_q_heads, num_kv_heads=heads)


def check_query_dtype(query: Array, name: str = "query") -> None:
    """Check the dtype of queries, the argument ``name``.

    Raises:
      UsageError: no kernel has it.
    """
    if query.dtype.name not in DTYPES:
        raise UsageError(f"{name} must have dtype {', '.join(DTYPES)}, got {query.dtype}")


def check_query_codes(query: Array, k_pages: Any, q_scale: Any, out_dtype: Any) -> tuple[str, str, Array | None]:
    """The dtype of the output, which parts of queries ``[tokens, N, H]`` have a scale, and this scale as float32.

    Raises:
      UsageError: codes without a scale, or over a cache of another dtype; a scale or another dtype of the output for
        queries that are no codes; a scale of another shape, or one of Python or numpy that is not finite.
    """
    dtype = query.dtype.name
    if dtype not in CODES:
        check_query_dtype(query)
        if q_scale is not None:
            raise UsageError(f"q_scale belongs to a query of {' or '.join(CODES)}, not of {dtype}; leave it out")
        if out_dtype is not None and (wanted := dtype_name("out_dtype", out_dtype)) != dtype:
            raise UsageError(f"out_dtype={wanted} needs a query of codes; of a {dtype} query it is {dtype}")
        return dtype, "none", None
    if (cache := check_array("k_pages", k_pages).dtype.name) != dtype:
        raise UsageError(
            f"query holds {dtype} codes and k_pages {cache}: both must be codes of one dtype, or the query "
            f"{' or '.join(DTYPES)}"
        )
    if q_scale is None:
        raise UsageError(f"q_scale is missing: a query of {dtype} codes needs one number, or [tokens, N]")
    scale = check_array("q_scale", q_scale).astype(jnp.float32)
    if scale.shape not in ((), query.shape[:2]):
        raise UsageError(f"q_scale must be one number or {list(query.shape[:2])}, got {list(scale.shape)}")
    # Those of padding may be anything.
    if not scale.ndim and not isinstance(q_scale, jax.Array) and not np.isfinite(q_scale):
        raise UsageError(f"q_scale must be finite, got {shown(q_scale)}")
    found = dtype_name("out_dtype", jnp.bfloat16 if out_dtype is None else out_dtype)
    return found, "token" if scale.ndim else "tensor", scale


def over_cache(
    query: Array,
    k_pages: Any,
    v_pages: Any,
    page_table: Any,
    batch: int,
    workloads: Iterable[Workload],
    *,
    layout: str,
    sliding_window: int | None,
    softmax_scale: float | None,
    logits_soft_cap: float | None,
    softmax_aux: Any,
    k_scale: Any,
    v_scale: Any,
    max_kv_len: int | None,
    workload: str,
    latent_dim: int | None = None,
    out_dtype: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The attributes of a problem and the fields of its operands, but those that say how many queries there are.

    Args:
      query: queries ``[..., N, H]``.
      batch: the number of sequences.
      workloads: the profiles of lengths that the op knows.
      latent_dim: the columns of keys that are values too, of layout ``latent``, which no other call has.
      out_dtype: the dtype of the output, by name; None is that of the queries.

    Raises:
      UsageError: an argument is malformed, or does not fit another one; the message names it.
    """
    if layout == LATENT and latent_dim is None:
        raise unknown_name("layout", layout, LAYOUTS)
    num_q_heads, head_dim = query.shape[-2:]
    whole = None if page_table is not None else batch
    # Latents of bytes were checked with their queries.
    is_packed = layout == LATENT and k_pages.dtype == PACKED
    own = query.dtype if out_dtype is None else jnp.dtype(out_dtype)
    dtype = k_pages.dtype if is_packed else own
    k, v = check_caches(k_pages, v_pages, layout, dtype=dtype, whose="the query", sequences=whole)
    if not is_packed:
        check_heads(query, k, layout)
    sizes = sizes_of(layout, k.shape)
    table = None if page_table is None else check_integers("page_table", page_table, (batch, None))
    capacity = sizes["slot"] * (1 if table is None else table.shape[1])
    kv_dtype = SAME if k.dtype == own else "float8_e4m3fn" if is_packed else k.dtype.name
    kv_scale, scales = check_scales(kv_dtype, layout, k, (k_scale, v_scale))
    kv_scale = BLOCK if is_packed else kv_scale
    check_workload(workload, workloads)
    longest = capacity if max_kv_len is None else positive_integer("max_kv_len", max_kv_len)
    attributes = {
        "batch": batch,
        "kv_len": min(capacity, longest),
        "num_q_heads": num_q_heads,
        "num_kv_heads": sizes["head"],
        "head_dim": head_dim,
        "v_head_dim": latent_dim or (head_dim if v is None else v.shape[-1]),
        "page_size": 0 if table is None else sizes["slot"],
        "layout": layout,
        "dtype": own.name,
        "kv_dtype": kv_dtype,
        "kv_scale": kv_scale,
        "window": check_window(sliding_window),
        "has_sinks": softmax_aux is not None,
        "soft_cap": None if logits_soft_cap is None else static_float("logits_soft_cap", logits_soft_cap),
        "scale": 1 / math.sqrt(head_dim) if softmax_scale is None else static_float("softmax_scale", softmax_scale),
        "workload": workload,
    }
    arrays = {
        "q": query,
        "k": k,
        "v": v,
        "page_table": table,
        "sinks": None if softmax_aux is None else sinks_of(softmax_aux, num_q_heads, sizes["head"]),
        "k_scale": scales[0],
        "v_scale": scales[1],
    }
    return attributes, arrays
