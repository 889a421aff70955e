"""The public ``sparse_mla``: latent attention of every query to the keys that its own list of indices names."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from attn_tune.api.call import run
from attn_tune.api.declaration import Call
from attn_tune.api.serving.latents import latent_query
from attn_tune.ops.fields.arguments import check_array, check_not_empty, checked_flag, static_float
from attn_tune.ops.fields.cache_arguments import check_integers, check_workload
from attn_tune.ops.fields.sinks import sinks_of
from attn_tune.ops.sparse_mla.operands import Operands
from attn_tune.ops.sparse_mla.problem import CAUSAL, NAME, WORKLOADS, Problem
from attn_tune.schema.errors import UsageError

_WHOLE = "it has to be whole on each device; shard sequences, queries or heads instead"


def _outputs(problem: Problem, operands: Operands) -> dict[str, jax.ShapeDtypeStruct]:
    rows = operands.q.shape[:3]
    return {
        "out": jax.ShapeDtypeStruct((*rows, problem.v_head_dim), operands.q.dtype),
        "lse": jax.ShapeDtypeStruct(tuple(rows), jnp.float32),
    }


def _with_shapes(problem: Problem, operands: Operands) -> Problem:
    batch, q_len, heads, _ = operands.q.shape
    return dataclasses.replace(problem, batch=batch, q_len=q_len, num_q_heads=heads)


_CALL = Call(
    op=NAME,
    letters={"q": "btnh", "kv": "bsh", "indices": "bti", "sinks": "n", "out": "btnv", "lse": "btn"},
    main={"q": "query", "kv": "latents"},
    outputs=_outputs,
    with_shapes=_with_shapes,
    parallel=("b", "t", "n"),
    words={"b": "batch", "t": "queries", "n": "query heads", "s": "tokens", "h": "width", "i": "indices"},
    remedies={"s": _WHOLE, "h": _WHOLE},
    alternative="sparse latent attention has no derivative; train with attn_tune.flash_attention",
)


def sparse_mla(
    q_latent: Float[Array, "..."],
    q_rope: Float[Array, "..."],
    latents: Float[Array, "..."],
    indices: Int[Array, "..."],
    *,
    softmax_scale: float,
    softmax_aux: Float[Array, "..."] | None = None,
    workload: str = CAUSAL,
    return_lse: bool = False,
    platform: str | Mapping[str, str | None] | None = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Sequence[PartitionSpec | None] | None = None,
    out_specs: PartitionSpec | None = None,
) -> Any:
    """Latent attention (MLA) of each query to the tokens that its own indices name, as ``indexer_topk`` selects them.

    As in ``mla_decode`` all query heads share one key of ``L + R`` numbers, whose first ``L`` are the value. Nothing
    else hides a key: causality is that of the indices. An index below zero, or of ``S`` and above, names nothing and
    may stand anywhere; a key that a query names several times counts as often. Tokens that no index names may be
    anything. There is no derivative.

    Args:
      q_latent: ``[B, T, N, L]``, or ``[tokens, N, L]``: the queries of all sequences, which share one pool of latents.
      q_rope: ``[B, T, N, R]`` or ``[tokens, N, R]``: the rotary part. Slices of one array are not copied.
      latents: ``[B, S, L + R]``, of each token its latent and then its rotary key. Of a pool ``[S, L + R]``, or its
        pages ``[pages, P, L + R]``, whose token ``i`` of page ``p`` has the index ``p * P + i``. A key head's axis of
        one may stand before the last.
      indices: int32 ``[B, T, top]`` or ``[tokens, top]``, in any order.
      softmax_scale: multiplies the logits; as in ``mla_decode`` it has no default.
      softmax_aux: attention sinks, as in ``flash_attention``.
      workload: the keys to expect, which choose the config: ``causal``, from those up to the query's own, or ``any``.
      return_lse: return ``(out, lse)``.
      platform: the kernel to use, as in ``flash_attention``.
      cfg: the config to use, as in ``flash_attention``.
      mesh: run under ``shard_map``, as in ``flash_attention``: over sequences, queries and heads; each device has all
        tokens of its sequences.
      in_specs: the specs on ``mesh`` of the query ``[B, T, N, L + R]`` and of the latents ``[B, S, L + R]``; without an
        axis of sequences that axis is one.
      out_specs: the spec of the output, likewise.

    Returns:
      ``out``, like ``q_latent``; zero where nothing is named. With ``return_lse`` also the natural logarithm of the
      softmax's denominator, ``[B, T, N]`` or ``[tokens, N]`` in float32, sinks included; where nothing is named theirs
      alone, or minus infinity.

    Raises:
      UsageError: an argument is malformed; the message names it.
      UnsupportedError: no kernel can do this here, or not the requested one; or a derivative is asked for.
    """
    q, latent_dim = latent_query(q_latent, q_rope, softmax_scale, forms=("[B, T, N, L]", "[tokens, N, L]"))
    check_workload(workload, WORKLOADS)
    return_lse = checked_flag("return_lse", return_lse)
    is_pool, rows = q.ndim == 3, q.shape[:-2]
    q = q[None] if is_pool else q
    kv = _checked_latents(latents, q, is_pool=is_pool)
    named = check_array("indices", indices)
    named = check_integers("indices", named, (*rows, named.shape[-1] if named.ndim else 0), "q_latent")
    problem = Problem(
        batch=q.shape[0],
        q_len=q.shape[1],
        kv_len=kv.shape[1],
        num_q_heads=q.shape[2],
        head_dim=q.shape[3],
        v_head_dim=latent_dim,
        num_selected=named.shape[-1],
        dtype=q.dtype.name,
        has_sinks=softmax_aux is not None,
        scale=static_float("softmax_scale", softmax_scale),
        workload=workload,
    )
    operands = Operands(
        q=q,
        kv=kv,
        indices=named[None] if is_pool else named,
        sinks=None if softmax_aux is None else sinks_of(softmax_aux, q.shape[2], 1),
    )
    place = {"platform": platform, "cfg": cfg, "mesh": mesh, "in_specs": in_specs, "out_specs": out_specs}
    outputs = run(_CALL, problem, operands, **place)
    out, lse = (x[0] if is_pool else x for x in (outputs["out"], outputs["lse"]))
    return (out, lse) if return_lse else out


def _checked_latents(latents: Any, q: Array, *, is_pool: bool) -> Float[Array, "B S H"]:
    """The keys that fit queries ``[B, T, N, H]``; of a pool its pages as one.

    Raises:
      UsageError: another shape or dtype.
    """
    kv = check_not_empty("latents", check_array("latents", latents))
    width = q.shape[-1]
    most = 4 if is_pool or (kv.ndim == 4 and kv.shape[2] == 1) else 3
    fits = 2 if is_pool else 3
    if not fits <= kv.ndim <= most or kv.shape[-1] != width or not (is_pool or kv.shape[0] == q.shape[0]):
        wanted = f"[S, {width}] or [pages, P, {width}]" if is_pool else f"[{q.shape[0]}, S, {width}]"
        raise UsageError(f"latents must be {wanted}, latent and rotary part of a token, got shape {kv.shape}")
    if kv.dtype != q.dtype:
        raise UsageError(f"latents must be {q.dtype} as q_latent, got {kv.dtype}")
    return kv.reshape(1 if is_pool else q.shape[0], -1, width)
