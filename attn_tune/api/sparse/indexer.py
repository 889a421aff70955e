"""The public ``indexer``: scores by which sparse attention selects the keys of each query."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from attn_tune.api.call import run
from attn_tune.api.declaration import Call
from attn_tune.api.serving.cache_attention import check_query_dtype
from attn_tune.ops.fields.arguments import check_array, check_not_empty, static_float
from attn_tune.ops.fields.cache_arguments import check_integers, check_workload
from attn_tune.ops.indexer.operands import Operands
from attn_tune.ops.indexer.problem import CAUSAL, NAME, WORKLOADS, Problem
from attn_tune.schema.errors import UsageError


def _outputs(problem: Problem, operands: Operands) -> dict[str, jax.ShapeDtypeStruct]:
    shape = (*operands.q.shape[:2], operands.k.shape[1])
    return {"scores": jax.ShapeDtypeStruct(shape, jnp.float32)}


def _with_shapes(problem: Problem, operands: Operands) -> Problem:
    return dataclasses.replace(problem, batch=operands.q.shape[0], q_len=operands.q.shape[1])


_WHOLE = "it has to be whole on each device; shard sequences or queries instead"
_CALL = Call(
    op=NAME,
    letters={"q": "btnh", "k": "bsh", "weights": "btn", "starts": "bt", "ends": "bt", "scores": "bts"},
    main={"q": "query", "k": "key"},
    outputs=_outputs,
    with_shapes=_with_shapes,
    parallel=("b", "t"),
    words={"b": "batch", "t": "queries", "n": "index heads", "s": "tokens", "h": "width"},
    remedies=dict.fromkeys("nsh", _WHOLE),
    alternative="the indexer has no derivative",
)


def indexer(
    query: Float[Array, "..."],
    key: Float[Array, "..."],
    weights: Float[Array, "..."],
    starts: Int[Array, "..."] | None = None,
    ends: Int[Array, "..."] | None = None,
    *,
    scale: float = 1.0,
    workload: str = CAUSAL,
    platform: str | Mapping[str, str | None] | None = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Sequence[PartitionSpec | None] | None = None,
    out_specs: PartitionSpec | None = None,
) -> Float[Array, "..."]:
    """Scores of the keys of each query, ``scale * sum_j weights[j] * relu(query[j] . key)`` (DeepSeek-V3.2's indexer).

    Query ``t`` scores the keys of ``[starts[t], ends[t])``, all others are minus infinity. A causal call of sequences
    that begin at the first key has ``ends`` of one to ``S``; packed sequences have ``starts`` too. Keys in no range may
    be anything. There is no derivative.

    Args:
      query: ``[B, T, HI, DI]``, or ``[tokens, HI, DI]``, the queries of all sequences.
      key: ``[B, S, DI]`` or ``[S, DI]``, of the query's dtype.
      weights: what each head of a query counts, ``[B, T, HI]`` or ``[tokens, HI]``; taken in float32.
      starts: int32 ``[B, T]`` or ``[tokens]``; None: the first key.
      ends: likewise; None: all keys.
      scale: multiplies the scores.
      workload: the ranges to expect, which choose the config: ``causal`` or ``all``.
      platform: the kernel to use, as in ``flash_attention``.
      cfg: the config to use, as in ``flash_attention``.
      mesh: run under ``shard_map``, as in ``flash_attention``, over sequences and queries.
      in_specs: the specs on ``mesh`` of the query ``[B, T, HI, DI]`` and the keys ``[B, S, DI]``; without an axis of
        sequences that axis is one.
      out_specs: the spec of the scores ``[B, T, S]``.

    Returns:
      The scores ``[B, T, S]`` or ``[tokens, S]`` in float32.

    Raises:
      UsageError: an argument is malformed; the message names it.
      UnsupportedError: no kernel can do this here, or not the requested one; or a derivative is asked for.
    """
    q = check_not_empty("query", check_array("query", query))
    k = check_not_empty("key", check_array("key", key))
    if q.ndim not in (3, 4):
        raise UsageError(f"query must be [B, T, HI, DI] or [tokens, HI, DI], got shape {q.shape}")
    check_query_dtype(q)
    if k.ndim != q.ndim - 1 or k.shape[-1] != q.shape[-1] or (q.ndim == 4 and k.shape[0] != q.shape[0]):
        wanted = f"[{q.shape[0]}, S, {q.shape[-1]}]" if q.ndim == 4 else f"[S, {q.shape[-1]}]"
        raise UsageError(f"key must be {wanted} beside query {list(q.shape)}, got shape {k.shape}")
    if k.dtype != q.dtype:
        raise UsageError(f"key must be {q.dtype} as the query, got {k.dtype}")
    counts = check_array("weights", weights)
    if counts.shape != q.shape[:-1] or not jnp.issubdtype(counts.dtype, jnp.floating):
        raise UsageError(f"weights must be numbers {list(q.shape[:-1])}, got {counts.dtype}{list(counts.shape)}")
    check_workload(workload, WORKLOADS)
    rows, length = q.shape[:-2], k.shape[-2]
    first = jnp.zeros(rows, jnp.int32) if starts is None else check_integers("starts", starts, rows, "query")
    last = jnp.full(rows, length, jnp.int32) if ends is None else check_integers("ends", ends, rows, "query")
    arrays = (q, k, counts.astype(jnp.float32), first, last)
    operands = Operands(*(arrays if q.ndim == 4 else (x[None] for x in arrays)))
    problem = Problem(
        batch=operands.q.shape[0],
        q_len=operands.q.shape[1],
        kv_len=length,
        num_q_heads=q.shape[-2],
        head_dim=q.shape[-1],
        dtype=q.dtype.name,
        scale=static_float("scale", scale),
        workload=workload,
    )
    place = {"platform": platform, "cfg": cfg, "mesh": mesh, "in_specs": in_specs, "out_specs": out_specs}
    scores = run(_CALL, problem, operands, **place)["scores"]
    return scores if q.ndim == 4 else scores[0]
