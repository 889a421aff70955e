"""The public ``native_sparse_attention``: attention to selected blocks, and the sum of the three branches."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from attn_tune.api.attention_arrays import LETTERS, SHARED
from attn_tune.api.call import run
from attn_tune.api.declaration import Call
from attn_tune.api.flash_attention import flash_attention
from attn_tune.api.sparse.compressed import compressed_attention, mean_pooling
from attn_tune.ops.fields.arguments import check_array, check_qkv, checked_flag, static_float
from attn_tune.ops.fields.cache_arguments import check_integers, check_workload
from attn_tune.ops.fields.integers import positive_integer, saturated
from attn_tune.ops.fields.packed_arguments import checked_ends
from attn_tune.ops.masks.mask_info import KV_PADDING, Q_PADDING, MaskInfo
from attn_tune.ops.native_sparse_attention.arguments import checked_block_size
from attn_tune.ops.native_sparse_attention.blocks import blocks_of
from attn_tune.ops.native_sparse_attention.operands import BackwardInputs, Operands, Residuals
from attn_tune.ops.native_sparse_attention.problem import DEFAULT_BLOCK, LOCAL, NAME, WORKLOADS, Problem
from attn_tune.schema.errors import UsageError

type Specs = Sequence[PartitionSpec | None]


def _outputs(problem: Problem, operands: Operands) -> dict[str, jax.ShapeDtypeStruct]:
    rows = operands.q.shape[:3]
    return {
        "out": jax.ShapeDtypeStruct((*rows, operands.v.shape[3]), operands.q.dtype),
        "lse": jax.ShapeDtypeStruct(tuple(rows), jnp.float32),
    }


def _with_shapes(problem: Problem, operands: Operands) -> Problem:
    rows, q_len, heads, _ = operands.q.shape
    _, kv_len, kv_heads, _ = operands.k.shape
    batch = problem.batch if problem.is_packed else rows
    sizes = {"q_len": q_len, "kv_len": kv_len, "num_q_heads": heads, "num_kv_heads": kv_heads}
    return dataclasses.replace(problem, batch=batch, **sizes)


def _backward_inputs(operands: Operands, residuals: dict[str, Array], cotangents: dict[str, Array]) -> BackwardInputs:
    saved = Residuals(residuals["out"], residuals["lse"])
    dout = cotangents["out"]
    wide = (x.astype(jnp.float32) for x in (dout, saved.out))
    product = jnp.einsum("btnv,btnv->btn", *wide, precision=jax.lax.Precision.HIGHEST)
    delta = product - cotangents["lse"].astype(jnp.float32)
    return BackwardInputs(operands, saved, dout, jnp.where(jnp.isneginf(saved.lse), 0.0, delta))


_CALL = Call(
    op=NAME,
    letters={**LETTERS, "indices": "btki", "cu_seqlens": "e", "lse": "btn", "delta": "btn"},
    outputs=_outputs,
    with_shapes=_with_shapes,
    gradients=("q", "k", "v"),
    residuals=("out", "lse"),
    backward_inputs=_backward_inputs,
    **SHARED
    | {"broadcast": (), "unfoldable": ("cu_seqlens",), "remedies": dict.fromkeys("tshv", "shard batch and heads")},
)


def native_sparse_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K V"],
    block_indices: Int[Array, "B T K top"],
    *,
    block_size: int = DEFAULT_BLOCK,
    block_counts: int | Int[Array, "B T K"] | None = None,
    g_slc: Float[Array, "B T N"] | None = None,
    g_cmp: Float[Array, "B T N"] | None = None,
    g_swa: Float[Array, "B T N"] | None = None,
    window_size: int | None = None,
    softmax_scale: float | None = None,
    cu_seqlens: Int[Array, " ends"] | None = None,
    workload: str = LOCAL,
    return_lse: bool = False,
    platform: str | Mapping[str, str | None] | None = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Specs | None = None,
    out_specs: PartitionSpec | None = None,
) -> Any:
    """Native sparse attention (NSA, arXiv 2502.11089): each query attends to the blocks of keys that it names.

    Without gates it is the selected branch alone, the op whose kernels are tuned. With them it is the sum of up to
    three branches, each times its gate: the selected one, ``compressed_attention`` over blocks of keys averaged by
    ``mean_pooling``, and ``flash_attention`` in a causal window. Each is looked up as what it is.

    Block ``i`` holds the keys ``[i, i + 1) * block_size`` of the query's sequence, and a query sees those of them up to
    its own position. An entry below zero, or beyond the query's own block, names nothing, wherever it stands; a block
    that is named several times counts as often. A query that sees nothing gives zeros. All operands are finite.
    Differentiable in query, key, value and gates, with the returned lse taking part: once, in reverse mode.

    Args:
      query: ``[B, T, N, H]``; query ``t`` stands at position ``t + S - T``.
      key: ``[B, S, K, H]``.
      value: ``[B, S, K, V]``.
      block_indices: integers ``[B, T, K, top]``, in any order: the query heads of a group share their blocks.
        ``select_blocks`` makes them.
      block_size: keys of a block, a power of two from 16 to 256. It decides the result and is never tuned.
      block_counts: so many entries of a row count, those in front; default all.
      g_slc: the gate of the selected branch, ``[B, T, N]``; None: one.
      g_cmp: the gate of the compressed branch; None: there is none.
      g_swa: the gate of the window; None: there is none.
      window_size: keys that a query of the window sees, its own one among them.
      softmax_scale: default ``1/sqrt(H)``; of all branches.
      cu_seqlens: int32 ``[sequences + 1]``: sequences lie end to end in a batch of one; the first token of each, and
        the end of the last. Then ``T`` and ``S`` are equal, and blocks are counted from the first token of each.
        Tokens of no sequence give zeros.
      workload: the blocks to expect, which choose the config: ``local``, ``random`` or ``same``.
      return_lse: return ``(out, lse)``, of the selected branch alone.
      platform: the kernels of the selected branch, as in ``flash_attention``.
      cfg: the configs of the selected branch, as in ``flash_attention``.
      mesh: run under ``shard_map`` over batch and heads; needs ``in_specs``.
      in_specs: the specs of query, key and value; those of everything else follow from them.
      out_specs: the query's spec.

    Returns:
      ``out`` ``[B, T, N, V]`` in the query's dtype. With ``return_lse`` also the natural logarithm of the softmax's
      denominator, ``[B, T, N]`` in float32; minus infinity where nothing is seen.

    Raises:
      UsageError: an argument is malformed; the message names it.
      UnsupportedError: no kernel can do this here, or not the requested one; or a second derivative was asked for.
    """
    sizes = check_qkv(query, key, value)
    ends = checked_ends(cu_seqlens, sizes["B"], sizes["T"])
    gates = {"g_slc": g_slc, "g_cmp": g_cmp, "g_swa": g_swa}
    gates = {name: _checked_gate(name, gate, sizes) for name, gate in gates.items() if gate is not None}
    if (window_size is None) != (g_swa is None):
        raise UsageError("window_size and g_swa belong together: give both, or neither")
    window = None if window_size is None else positive_integer("window_size", window_size)
    if checked_flag("return_lse", return_lse) and gates:
        raise UsageError("return_lse is the lse of the selected branch alone: leave the gates out")
    check_workload(workload, WORKLOADS)
    scale = sizes["H"] ** -0.5 if softmax_scale is None else static_float("softmax_scale", softmax_scale)
    indices = _checked_indices(block_indices, block_counts, sizes)
    problem = Problem(
        batch=sizes["B"] if ends is None else ends.shape[0] - 1,
        q_len=sizes["T"],
        kv_len=sizes["S"],
        num_q_heads=sizes["N"],
        num_kv_heads=sizes["K"],
        head_dim=sizes["H"],
        v_head_dim=sizes["V"],
        num_selected=indices.shape[3],
        block_size=checked_block_size(block_size),
        dtype=query.dtype.name,
        is_packed=ends is not None,
        scale=scale,
        workload=workload,
    )
    place: dict[str, Any] = {"mesh": mesh, "in_specs": in_specs, "out_specs": out_specs}
    outputs = run(_CALL, problem, Operands(query, key, value, indices, ends), platform=platform, cfg=cfg, **place)
    if not gates:
        return (outputs["out"], outputs["lse"]) if return_lse else outputs["out"]
    out = _gated(outputs["out"], gates.get("g_slc"))
    place["softmax_scale"] = scale
    if g_cmp is not None:
        pooled = (mean_pooling(x, block_size=block_size, cu_seqlens=ends) for x in (key, value))
        structure: dict[str, Any] = {"kv_len": sizes["S"], "block_size": block_size, "cu_seqlens": ends}
        out += _gated(compressed_attention(query, *pooled, **structure, **place), gates["g_cmp"])
    if window is not None:
        bounds = (window - 1, 0)
        sequences = _sequences(problem, ends)
        near: Any = flash_attention(
            query, key, value, mask_info=sequences, causal=True, sliding_window=bounds, **place
        )  # fmt: skip
        out += _gated(near, gates["g_swa"])
    return out.astype(query.dtype)


def _sequences(problem: Problem, ends: Int[Array, " ends"] | None) -> MaskInfo | None:
    """The tokens of one sequence see one another; those of none, before the first one and behind the last, nothing."""
    if ends is None:
        return None
    firsts = blocks_of(problem, ends).firsts
    is_token = firsts <= jnp.arange(problem.q_len)
    q_ids, kv_ids = (jnp.where(is_token, firsts, padding)[None] for padding in (Q_PADDING, KV_PADDING))
    return MaskInfo(q_segment_ids=q_ids, kv_segment_ids=kv_ids)


def _gated(out: Float[Array, "B T N V"], gate: Array | None) -> Float[Array, "B T N V"]:
    """A branch times its gate, in float32."""
    wide = out.astype(jnp.float32)
    return wide if gate is None else wide * gate[..., None]


def _checked_gate(name: str, gate: Any, sizes: Mapping[str, int]) -> Float[Array, "B T N"]:
    array, shape = check_array(name, gate), tuple(sizes[letter] for letter in "BTN")
    if array.shape != shape or not jnp.issubdtype(array.dtype, jnp.floating):
        raise UsageError(f"{name} must be numbers {list(shape)}, got {array.dtype}{list(array.shape)}")
    return array.astype(jnp.float32)


def _checked_indices(given: Any, counts: Any, sizes: Mapping[str, int]) -> Int[Array, "B T K top"]:
    """The entries that count; those behind a row's count name nothing."""
    rows = tuple(sizes[letter] for letter in "BTK")
    indices = check_array("block_indices", given)
    indices = check_integers("block_indices", given, (*rows, indices.shape[-1] if indices.ndim else 0), "query")
    if counts is None:
        return indices
    number = check_array("block_counts", saturated(counts))
    if number.shape not in ((), rows) or not jnp.issubdtype(number.dtype, jnp.integer):
        raise UsageError(
            f"block_counts must be an integer or integers {list(rows)}, got {number.dtype}{list(number.shape)}"
        )
    return jnp.where(jnp.arange(indices.shape[3]) < number[..., None], indices, -1)
