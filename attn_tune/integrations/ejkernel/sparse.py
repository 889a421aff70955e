"""Attention of ejkernel with a mask of blocks, over a mesh axis, and to the tokens that an indexer selects."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

import attn_tune
from attn_tune.integrations.ejkernel.arguments import (
    from_top_left,
    kernel_of,
    leave_out,
    mask_of,
    refuse,
    refuse_capped_bias,
    refuse_mesh,
    sinks_by_head,
    sinks_of_all,
)
from attn_tune.ops.fields.heads import repeated
from attn_tune.ops.masks.mask_info import MaskInfo
from attn_tune.schema.errors import UsageError, shown

type Window = int | tuple[int, int] | None
type Specs = Sequence[PartitionSpec | None] | None

# The smallest blocks that every kernel of the op takes, and those that most masks are built of.
_BLOCK_SIZES = (128, 64)


def blocksparse_attention(
    query: Float[Array, "B N T H"],
    key: Float[Array, "B K S H"],
    value: Float[Array, "B K S V"],
    softmax_aux: Float[Array, "..."] | None = None,
    bias: Float[Array, "B N T S"] | None = None,
    *,
    mask_info: Any = None,
    attention_mask: Bool[Array, "B heads T S"] | Int[Array, "B heads T S"] | None = None,
    sequence_parallelism_mesh_axis_name: str | None = None,
    logits_soft_cap: float | None = None,
    qkv_layouts: Any = None,
    softmax_scale: float | None = None,
    mask_builder: Callable[..., Any] | None = None,
    sliding_window: Window = None,
    chunk_size: int | None = None,
    causal: bool = True,
    fused_backward: bool = False,
    purify: bool = False,
    platform: str | None = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Specs = None,
    out_specs: PartitionSpec | None = None,
) -> Float[Array, "B N T V"]:
    """``attn_tune.block_sparse_attention`` or ``flash_attention``, by ejkernel's arguments; heads before tokens.

    The op is ``block_sparse_attention`` where ``mask_builder`` gives blocks of 128 or 64 that are seen whole, or as far
    as causality allows, and nothing else asks for more. Otherwise it is ``flash_attention``, whose kernels skip what
    causality, window and segments hide; the mask of any other builder is given to it whole. Every mask that is given
    must allow a pair, where ejkernel's kernels use the builder's instead of ``causal`` and the window, or leave it
    unread. Row ``i`` stands at position ``i``; rows that see nothing give zeros, with ``purify`` or without.

    Args:
      query, key, value: ``[B, N, T, H]``, ``[B, K, S, H]``, ``[B, K, S, V]``; axes are swapped for the op.
      softmax_aux: sinks, ``[sinks]`` of all heads, ``[N]`` or ``[K]``, or ``[N | K, sinks]``.
      bias: ``[B, N, T, S]``; refused with ``logits_soft_cap``.
      mask_info: a ``MaskInfo`` of ejkernel or of attn_tune; its segments stay O(N).
      mask_builder: ``(T, S, N, head, N)`` to a mask that ``mask[:, :]`` or ``mask[slice, slice]`` reads. Builders
        without an argument, of layouts for a Triton kernel, are refused.
      chunk_size: a token sees its own chunk of so many alone.
      qkv_layouts: refused: lists of blocks are made from the mask.
      sequence_parallelism_mesh_axis_name: refused; call ``ring_attention``.
      fused_backward: left out with a warning.
      mesh, in_specs, out_specs: refused.

    Raises:
      UsageError: an argument is malformed or cannot be honoured.
    """
    name = "blocksparse_attention"
    refuse_mesh(name, mesh, in_specs, out_specs)
    refuse(name, "lists of blocks are made from the mask; give mask_builder or a mask", qkv_layouts=qkv_layouts)
    refuse(name, "call ring_attention", sequence_parallelism_mesh_axis_name=sequence_parallelism_mesh_axis_name)
    if chunk_size is not None and (not isinstance(chunk_size, int | np.integer) or chunk_size < 1):
        raise UsageError(f"{name}: chunk_size must be a positive integer, got {shown(chunk_size)}")
    refuse_capped_bias(name, bias, logits_soft_cap)
    leave_out(name, fused_backward=fused_backward)
    del purify  # Rows of padding see nothing, and are zeros.
    q, k, v = (x.swapaxes(1, 2) for x in (query, key, value))
    (batch, q_len, heads, _), kv_len = q.shape, k.shape[1]
    mask = mask_of(mask_info, positions=True)
    if chunk_size is not None:
        ids = (jnp.broadcast_to(jnp.arange(n) // chunk_size, (batch, n)) for n in (q_len, kv_len))
        chunks = MaskInfo.from_segments(*ids)
        mask = chunks if mask is None else mask & chunks
    mask = from_top_left(mask, batch, q_len, kv_len)
    options: dict[str, Any] = {
        "softmax_scale": softmax_scale,
        "logits_soft_cap": logits_soft_cap,
        "causal": causal,
        "sliding_window": sliding_window,
        "platform": kernel_of(name, platform, cfg),
    }
    if mask_builder is not None:
        built = _built(mask_builder, q_len, kv_len, heads)
        plain = softmax_aux is None and bias is None and attention_mask is None
        plain = (
            plain and q_len == kv_len and (mask is None or (mask.attention_mask is None and mask.q_positions is None))
        )
        blocks = _blocks(built, causal) if plain else None
        if blocks is not None:
            size, listed = blocks
            out = attn_tune.block_sparse_attention(
                q, k, v, jnp.asarray(listed[None]), block_size=size, mask_info=mask, **options
            )
            return out.swapaxes(1, 2)
        dense = MaskInfo(attention_mask=jnp.asarray(built[None]))
        mask = dense if mask is None else mask & dense
    out: Any = attn_tune.flash_attention(
        q,
        k,
        v,
        bias,
        softmax_aux=sinks_by_head(softmax_aux, heads, k.shape[2]),
        mask_info=mask,
        attention_mask=attention_mask,
        **options,
    )
    return out.swapaxes(1, 2)


def ring_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K H"],
    softmax_aux: Float[Array, "..."] | None = None,
    bias: Float[Array, "B N T S"] | None = None,
    /,
    *,
    mask_info: Any = None,
    mask_builder: Callable[..., Any] | None = None,
    sliding_window: Window = None,
    chunk_size: int | None = None,
    causal: bool = False,
    logits_soft_cap: float | None = None,
    softmax_scale: float | None = None,
    axis_name: str | None = None,
    fused_backward: bool = False,
    platform: str | None = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Specs = None,
    out_specs: PartitionSpec | None = None,
) -> Float[Array, "B T N H"]:
    """``attn_tune.ring_attention`` of layout ``contiguous`` by the arguments of ``ejkernel.modules.ring_attention``.

    Without ``axis_name`` it is ``attn_tune.flash_attention``. With ``mesh`` it runs under ``jax.shard_map``; without,
    it must be called inside one. The layouts ``zigzag`` and ``striped`` share causal work evenly: call the op for them.

    Args:
      query, key, value: ``[B, T, N, H]`` and ``[B, T, K, H]`` twice, this device's tokens or, with ``mesh``, all.
      softmax_aux: sinks, ``[sinks]`` of all heads, or ``[N | K, sinks]``; they count once.
      bias, mask_builder: refused: nothing dense goes round.
      mask_info: segments, causality and window; a dense mask and positions are refused.
      chunk_size: refused: ejkernel's XLA kernel tiles by it, its TPU kernel masks by it.
      fused_backward: left out with a warning.
      mesh, in_specs, out_specs: all of them or none; the specs of query, key and value.

    Raises:
      UsageError: an argument is malformed or cannot be honoured.
    """
    name = "ring_attention"
    refuse(name, "say it by causal, sliding_window and segments", bias=bias, mask_builder=mask_builder)
    refuse(name, "leave it out, or give chunks as segments", chunk_size=chunk_size)
    leave_out(name, fused_backward=fused_backward)
    mask = mask_of(mask_info, positions=True)
    if mask is not None and (mask.attention_mask is not None or mask.q_positions is not None):
        raise UsageError(f"{name}: mask_info must hold no dense mask and no positions; call flash_attention with these")
    flags = MaskInfo(causal=causal, sliding_window=sliding_window)
    mask = flags if mask is None else mask & flags
    options: dict[str, Any] = {
        "softmax_scale": softmax_scale,
        "logits_soft_cap": logits_soft_cap,
        "platform": kernel_of(name, platform, cfg),
    }
    sinks = sinks_of_all(softmax_aux)
    if axis_name is None:
        refuse_mesh(f"{name} without axis_name", mesh, in_specs, out_specs)
        out: Any = attn_tune.flash_attention(query, key, value, softmax_aux=sinks, mask_info=mask, **options)
        return out
    options |= {"causal": mask.causal, "sliding_window": mask.sliding_window}
    op = functools.partial(attn_tune.ring_attention, axis_name=axis_name, layout="contiguous", **options)

    def attend(q, k, v, aux, q_segments, kv_segments):
        return op(q, k, v, aux, q_segment_ids=q_segments, kv_segment_ids=kv_segments)

    operands = (query, key, value, sinks, mask.q_segment_ids, mask.kv_segment_ids)
    if mesh is None:
        return attend(*operands)
    if in_specs is None or out_specs is None:
        raise UsageError(f"{name}: mesh needs in_specs and out_specs; or call it inside jax.shard_map")
    rows = [PartitionSpec(*(spec or ())[:2]) for spec in in_specs[:2]]
    specs = (*(spec or PartitionSpec() for spec in in_specs[:3]), PartitionSpec(), *rows)
    if any(kind == AxisType.Explicit for kind in mesh.axis_types):
        placed = (NamedSharding(mesh, spec) for spec in specs)
        operands = (x if x is None else jax.sharding.reshard(x, to) for x, to in zip(operands, placed, strict=True))
    return jax.shard_map(attend, mesh=mesh, in_specs=specs, out_specs=out_specs, check_vma=False)(*operands)


def deepseek_attn(
    query: Float[Array, "B T N H"],
    key_value: Float[Array, "B T L"],
    w_kc: Float[Array, "L K nope"],
    w_vc: Float[Array, "L K V"],
    query_index: Float[Array, "B T HI DI"],
    key_index: Float[Array, "B T DI"],
    index_weights: Float[Array, "B T HI"],
    b_q: Float[Array, "B T R"] | None = None,
    b_k: Float[Array, "B T R"] | None = None,
    /,
    *,
    index_topk: int = 2048,
    softmax_scale: float | None = None,
    index_softmax_scale: float | None = None,
    causal: bool = True,
    platform: str | None = None,
    cfg: Any = None,
) -> Float[Array, "B T N V"]:
    """``attn_tune.indexer_topk``, then ``sparse_mla`` with the projections absorbed, by ejkernel's arguments.

    A token always sees itself, as there. There is no derivative: ``sparse_mla`` has none.

    Args:
      query: ``[B, T, N, nope + R]``, or ``[B, T, N, nope]`` with ``b_q``.
      key_value: latents ``[B, T, L]``.
      w_kc, w_vc: from latents to keys ``[L, K, nope]`` and to values ``[L, K, V]``.
      query_index, key_index, index_weights: of the indexer, ``[B, T, HI, DI]``, ``[B, T, DI]``, ``[B, T, HI]``.
      b_q, b_k: rotary parts ``[B, T, R]`` that all heads share; ``b_k`` is needed, since ``sparse_mla`` takes one.
      index_topk: how many keys a token sees.
      softmax_scale: default one over the root of ``nope + R``.
      index_softmax_scale: default one over the root of ``DI``.

    Raises:
      UsageError: an argument is malformed or cannot be honoured.
    """
    name = "deepseek_attn"
    if b_k is None:
        raise UsageError(
            f"{name}: b_k is needed: sparse_mla has a rotary part; call flash_mla for all keys without one"
        )
    kernel = kernel_of(name, platform, cfg)
    batch, length, heads, _ = query.shape
    nope, rotary = w_kc.shape[2], b_k.shape[2]
    wanted = nope + (rotary if b_q is None else 0)
    if query.shape[3] != wanted:
        raise UsageError(
            f"{name}: query must be {wanted} wide {'without' if b_q is None else 'with'} b_q, got {query.shape[3]}"
        )
    if b_q is not None and b_q.shape != (batch, length, rotary):
        raise UsageError(f"{name}: b_q must have shape {(batch, length, rotary)}, as b_k, got {b_q.shape}")
    q_rope = query[..., nope:]
    if b_q is not None:
        q_rope = jnp.broadcast_to(b_q[:, :, None], (batch, length, heads, rotary)).astype(query.dtype)
    to_keys, to_values = (repeated(w, heads // w.shape[1], 1) for w in (w_kc, w_vc))
    q_latent = jnp.einsum("btnh,lnh->btnl", query[..., :nope], to_keys).astype(query.dtype)
    own = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (batch, length))
    selected = attn_tune.indexer_topk(
        query_index,
        key_index,
        index_weights,
        None,
        own + 1 if causal else None,
        topk=min(index_topk, length),
        scale=query_index.shape[-1] ** -0.5 if index_softmax_scale is None else index_softmax_scale,
        platform=kernel,
    )
    itself = jnp.where(jnp.any(selected == own[..., None], axis=-1), -1, own)
    latents = jnp.concatenate([key_value, b_k], axis=-1).astype(query.dtype)
    out = attn_tune.sparse_mla(
        q_latent,
        q_rope,
        latents,
        jnp.concatenate([selected, itself[..., None]], axis=-1),
        softmax_scale=(nope + rotary) ** -0.5 if softmax_scale is None else softmax_scale,
        workload="causal" if causal else "any",
        platform=kernel,
    )
    return jnp.einsum("btnl,lnv->btnv", out, to_values).astype(query.dtype)


def _built(builder: Callable[..., Any], q_len: int, kv_len: int, heads: int) -> np.ndarray:
    """The mask of a builder as booleans ``[1 | N, T, S]``.

    Raises:
      UsageError: it takes no argument, or its mask cannot be read as an array.
    """
    name = "blocksparse_attention"
    try:
        masks = [builder(q_len, kv_len, heads, head, heads) for head in range(heads)]
    except TypeError as error:
        raise UsageError(
            f"{name}: mask_builder must take (q_len, kv_len, heads, head, heads); layouts of a Triton kernel cannot be "
            f"honoured here ({error})"
        ) from None
    try:
        read = [np.asarray(mask[slice(0, q_len), slice(0, kv_len)], bool) for mask in masks]
    except TypeError as error:
        raise UsageError(f"{name}: the mask of mask_builder cannot be read by mask[rows, columns] ({error})") from None
    if any(mask.shape != (q_len, kv_len) for mask in read):
        raise UsageError(f"{name}: mask_builder must give a mask of {q_len} by {kv_len}, got {read[0].shape}")
    same = all(np.array_equal(read[0], mask) for mask in read[1:])
    return np.stack(read[:1] if same else read)


def _blocks(mask: np.ndarray, causal: bool) -> tuple[int, np.ndarray] | None:
    """``(size, blocks)`` of the largest blocks that say ``mask``, as far as ``causal`` allows; None where none do."""
    heads, rows, columns = mask.shape
    visible = np.tri(rows, columns, dtype=bool) if causal else np.ones((rows, columns), bool)
    for size in _BLOCK_SIZES:
        if rows % size or columns % size:
            continue
        seen = (mask & visible).reshape(heads, rows // size, size, columns // size, size)
        blocks = seen.any(axis=(2, 4))
        spread = np.repeat(np.repeat(blocks, size, axis=1), size, axis=2)
        if np.array_equal(spread & visible, mask & visible):
            return size, blocks
    return None
