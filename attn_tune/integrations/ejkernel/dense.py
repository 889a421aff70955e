"""Attention of ejkernel over arrays without pages: dense, packed, and of latents in training."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key

import attn_tune
from attn_tune.integrations.ejkernel.arguments import (
    dense_of,
    from_top_left,
    kernel_of,
    mask_of,
    refuse,
    refuse_capped_bias,
    refuse_mesh,
    sinks_by_head,
    sinks_of_all,
)
from attn_tune.ops.fields.arguments import typed_key
from attn_tune.ops.masks.mask_info import MaskInfo
from attn_tune.ops.masks.visibility import window_of
from attn_tune.schema.errors import UsageError

type Window = int | tuple[int, int] | None
type Specs = Sequence[PartitionSpec | None] | None


def flash_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K V"],
    bias: Float[Array, "B N T S"] | None = None,
    cum_seqlens_q: Int[Array, " R"] | None = None,
    cum_seqlens_k: Int[Array, " R"] | None = None,
    softmax_aux: Float[Array, "..."] | None = None,
    block_tables: Int[Array, "B pages"] | None = None,
    /,
    *,
    mask_info: Any = None,
    softmax_scale: float | None = None,
    dropout_prob: float = 0.0,
    causal: bool = False,
    dropout_seed: int | None = None,
    sliding_window: Window = None,
    logits_soft_cap: float | None = None,
    normalize_output: bool = True,
    precision: Any = jax.lax.Precision.DEFAULT,
    logits_dtype: Any = jnp.float32,
    platform: str | None = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Specs = None,
    out_specs: PartitionSpec | None = None,
) -> Float[Array, "B T N V"]:
    """``attn_tune.flash_attention`` by the arguments of ``ejkernel.modules.flash_attention``.

    Where ``T != S`` rows are aligned at the bottom right, as in ejkernel's Triton kernel; its XLA kernel aligns them
    at the top left. Sinks count once, and have a gradient, as bias has. The same seed drops other weights than there.

    Args:
      query, key, value: ``[B, T, N, H]``, ``[B, S, K, H]``, ``[B, S, K, V]``.
      bias: ``[B, N, T, S]``; refused with ``logits_soft_cap``, which takes it in there.
      cum_seqlens_q, cum_seqlens_k: offsets of sequences end to end in a batch of one.
      softmax_aux: sinks, ``[sinks]`` of all heads, or ``[N | K, sinks]``.
      block_tables: refused; keys and values in pages are those of ``unified_attention``.
      mask_info: a ``MaskInfo`` of ejkernel or of attn_tune.
      mesh, in_specs, out_specs: all of them or none.

    Raises:
      UsageError: an argument is malformed or cannot be honoured.
    """
    refuse_capped_bias("flash_attention", bias, logits_soft_cap)
    refuse("flash_attention", "call unified_attention or attn_tune.ragged_paged over pages", block_tables=block_tables)
    return attn_tune.flash_attention(
        query,
        key,
        value,
        bias,
        cum_seqlens_q,
        cum_seqlens_k,
        sinks_of_all(softmax_aux),
        mask_info=mask_of(mask_info),
        softmax_scale=softmax_scale,
        dropout_prob=dropout_prob,
        causal=causal,
        dropout_seed=dropout_seed,
        sliding_window=sliding_window,
        logits_soft_cap=logits_soft_cap,
        normalize_output=normalize_output,
        precision=precision,
        logits_dtype=logits_dtype,
        platform=kernel_of("flash_attention", platform, cfg),
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
    )


def attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K V"],
    bias: Float[Array, "B N T S"] | None = None,
    dropout_rng: Key[Array, ""] | None = None,
    softmax_aux: Float[Array, "..."] | None = None,
    /,
    *,
    mask_info: Any = None,
    init_bias: Callable[[], Float[Array, "B N T S"]] | None = None,
    deterministic: bool = True,
    softmax_scale: float | None = None,
    logits_soft_cap: float | None = None,
    dtype: Any = jnp.bfloat16,
    softmax_dtype: Any = None,
    dropout_prob: float = 0.0,
    causal: bool = False,
    sliding_window: Window = None,
) -> tuple[Float[Array, "B T N V"], Float[Array, "B N T S"]]:
    """``attn_tune.attention`` by the arguments of ``ejkernel.modules.attention``: ``(out, weights)``, in ``dtype``.

    Row ``i`` stands at position ``i``, as there. Different from there: a mask counts beside a bias, a row that sees
    nothing gives zeros (there the mean of all values), and each batch entry and head drops its own weights.

    Args:
      query, key, value: ``[B, T, N, H]``, ``[B, S, K, H]``, ``[B, S, K, V]``; cast to ``dtype``, bfloat16 by default.
      softmax_aux: sinks, ``[N]`` or ``[K]`` by head, ``[sinks]`` of all heads, or ``[N | K, sinks]``.
      mask_info: a ``MaskInfo`` of ejkernel or of attn_tune.

    Raises:
      UsageError: an argument is malformed.
    """
    batch, q_len, heads, _ = query.shape
    given = mask_of(mask_info)
    if bias is None and given is None and init_bias is not None:
        bias = init_bias()
    return attn_tune.attention(
        query,
        key,
        value,
        bias,
        dropout_rng,
        sinks_by_head(softmax_aux, heads, key.shape[2]),
        mask_info=from_top_left(given, batch, q_len, key.shape[1]),
        deterministic=deterministic,
        softmax_scale=softmax_scale,
        logits_soft_cap=logits_soft_cap,
        dtype=dtype if dtype is not None else query.dtype,
        softmax_dtype=softmax_dtype,
        dropout_prob=dropout_prob,
        causal=causal,
        sliding_window=sliding_window,
    )


def scaled_dot_product_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K H"],
    bias: Float[Array, "B N T S"] | None = None,
    cum_seqlens_q: Int[Array, " B"] | None = None,
    cum_seqlens_k: Int[Array, " B"] | None = None,
    /,
    *,
    mask_info: Any = None,
    init_bias: Callable[[], Float[Array, "B N T S"]] | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    sliding_window: Window = None,
    platform: str | None = None,
    mesh: Mesh | None = None,
    in_specs: Specs = None,
    out_specs: PartitionSpec | None = None,
) -> Float[Array, "B T N H"]:
    """``attn_tune.dot_product_attention`` by the arguments of ``ejkernel.modules.scaled_dot_product_attention``.

    Both are ``jax.nn.dot_product_attention``: row ``i`` stands at position ``i``, and a row that sees nothing gives
    the mean of all values.

    Args:
      query, key, value: ``[B, T, N, H]``, ``[B, S, K, H]`` twice.
      cum_seqlens_q, cum_seqlens_k: ``[B]``, lengths and not offsets, in spite of their name.
      init_bias: called only without ``bias``.
      mesh, in_specs, out_specs: refused.

    Raises:
      UsageError: an argument is malformed or cannot be honoured.
    """
    name = "scaled_dot_product_attention"
    refuse_mesh(name, mesh, in_specs, out_specs)
    return attn_tune.dot_product_attention(
        query,
        key,
        value,
        init_bias() if bias is None and init_bias is not None else bias,
        dense_of(mask_info),
        scale=softmax_scale,
        is_causal=causal,
        query_seq_lengths=cum_seqlens_q,
        key_value_seq_lengths=cum_seqlens_k,
        local_window_size=sliding_window,
        implementation=kernel_of(name, platform),
    )


def flash_mla(
    query: Float[Array, "B T N H"],
    key_value: Float[Array, "B T L"],
    w_kc: Float[Array, "L K nope"],
    w_vc: Float[Array, "L K V"],
    b_q: Float[Array, "B T R"] | None = None,
    b_k: Float[Array, "B T R"] | None = None,
    cu_seqlens: Int[Array, " ends"] | None = None,
    /,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    attention_mask: Bool[Array, "B heads T S"] | None = None,
    bias: Float[Array, "B heads T S"] | None = None,
    softmax_aux: Float[Array, "..."] | None = None,
    logits_soft_cap: float | None = None,
    deterministic: bool = True,
    dropout_rng: Key[Array, ""] | None = None,
    dropout_prob: float = 0.0,
    sliding_window: Window = None,
    softmax_dtype: Any = None,
    platform: str | None = None,
    cfg: Any = None,
) -> Float[Array, "B T N V"]:
    """Latent attention in training, by the arguments of ``ejkernel.modules.flash_mla``: ``flash_attention`` of heads.

    Keys and values of the ``K`` heads are made from the latents by two products of XLA; the op is
    ``attn_tune.flash_attention`` with ``V != H``. For decoding over a cache of latents there is
    ``attn_tune.mla_decode``. A mask counts beside a bias (there the bias wins), and products are those of the arrays'
    dtype.

    Args:
      query: ``[B, T, N, nope + R]``; ``[B, T, N, nope]`` with ``b_q``, or without ``b_k``.
      key_value: latents ``[B, T, L]``.
      w_kc, w_vc: from latents to keys ``[L, K, nope]`` and to values ``[L, K, V]``.
      b_q, b_k: rotary parts ``[B, T, R]`` that all heads share; ``b_q`` needs ``b_k``.
      cu_seqlens: offsets of sequences end to end in a batch of one.
      softmax_scale: default one over the root of ``nope + R``.
      softmax_dtype: float32 or None; others are refused.

    Raises:
      UsageError: an argument is malformed or cannot be honoured.
    """
    if b_q is not None and b_k is None:
        raise UsageError("flash_mla: b_q needs b_k, the rotary part of the keys; give both or neither")
    if softmax_dtype is not None and jnp.dtype(softmax_dtype) != jnp.float32:
        raise UsageError("flash_mla: softmax_dtype must be float32 or None: the softmax is in float32; leave it out")
    q = query
    k, v = (jnp.einsum("btl,lkh->btkh", key_value, w).astype(query.dtype) for w in (w_kc, w_vc))
    if b_k is not None:
        k = jnp.concatenate([k, _for_heads(b_k, k)], axis=-1)
        if b_q is not None:
            q = jnp.concatenate([query, _for_heads(b_q, query)], axis=-1)
    drops = dropout_prob != 0 and not deterministic
    if drops and dropout_rng is None:
        raise UsageError("flash_mla: dropout_rng is missing: dropout needs a key when deterministic=False")
    return attn_tune.flash_attention(
        q,
        k,
        v,
        bias,
        cu_seqlens,
        softmax_aux=softmax_aux,
        attention_mask=attention_mask,
        softmax_scale=softmax_scale,
        causal=causal,
        logits_soft_cap=logits_soft_cap,
        dropout_prob=dropout_prob if drops else 0.0,
        dropout_seed=typed_key(dropout_rng) if drops else None,
        sliding_window=sliding_window,
        platform=kernel_of("flash_mla", platform, cfg),
    )


def ragged_decode_attention(
    query: Float[Array, "B *one N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K V"],
    sequence_start: Int[Array, " B"],
    sequence_end: Int[Array, " B"],
    softmax_aux: Float[Array, "..."] | None = None,
    /,
    *,
    softmax_scale: float | None = None,
    sliding_window: Window = None,
    logits_soft_cap: float | None = None,
    platform: str | None = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Specs = None,
    out_specs: PartitionSpec | None = None,
) -> Float[Array, "B *one N V"]:
    """One query a sequence over keys ``[start, end)``, by the arguments of ``ejkernel.modules``' function of this name.

    The query stands at ``end - 1``. Where all starts are known to be zero (a numpy array, or any outside of
    ``jax.jit``) the op is ``attn_tune.paged_decode`` of a contiguous cache; else it is ``attn_tune.flash_attention``
    of one row. A sequence without keys gives zeros.

    Args:
      query: ``[B, N, H]`` or ``[B, 1, N, H]``.
      key, value: ``[B, S, K, H]`` and ``[B, S, K, V]``.
      sequence_start, sequence_end: int32 ``[B]``.
      softmax_aux: sinks, ``[sinks]`` of all heads, or ``[N | K, sinks]``.
      sliding_window: ``w`` or ``(left, right)`` in positions.
      mesh, in_specs, out_specs: refused.

    Raises:
      UsageError: an argument is malformed or cannot be honoured.
    """
    name = "ragged_decode_attention"
    refuse_mesh(name, mesh, in_specs, out_specs)
    if query.ndim == 4 and query.shape[1] != 1:
        raise UsageError(f"{name}: query must have one token a sequence, got {query.shape}; call flash_attention")
    q = query if query.ndim == 4 else query[:, None]
    kernel = kernel_of(name, platform, cfg)
    sinks = sinks_of_all(softmax_aux)
    left = None if sliding_window is None else window_of(sliding_window)[0]
    if not isinstance(sequence_start, Tracer) and not np.any(np.asarray(sequence_start)):
        out = attn_tune.paged_decode(
            q,
            key,
            value,
            jnp.asarray(sequence_end, jnp.int32),
            sliding_window=left,
            softmax_scale=softmax_scale,
            logits_soft_cap=logits_soft_cap,
            softmax_aux=sinks,
            platform=kernel,
        )
    else:
        at = jnp.arange(key.shape[1], dtype=jnp.int32)
        mask = MaskInfo.from_padding((at >= sequence_start[:, None]) & (at < sequence_end[:, None]), q_len=1)
        if left is not None:
            positions = MaskInfo(
                q_positions=jnp.asarray(sequence_end, jnp.int32)[:, None] - 1,
                kv_positions=jnp.broadcast_to(at, key.shape[:2]),
                sliding_window=(left, None),
            )
            mask = mask & positions
        out = attn_tune.flash_attention(
            q,
            key,
            value,
            softmax_aux=sinks,
            mask_info=mask,
            softmax_scale=softmax_scale,
            logits_soft_cap=logits_soft_cap,
            platform=kernel,
        )
    return out if query.ndim == 4 else out[:, 0]


def _for_heads(rotary: Float[Array, "B T R"], like: Float[Array, "B T heads H"]) -> Float[Array, "B T heads R"]:
    return jnp.broadcast_to(rotary[:, :, None], (*like.shape[:3], rotary.shape[-1])).astype(like.dtype)
