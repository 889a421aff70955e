"""The public ``mean_pooling`` and ``compressed_attention``: the compressed branch of native sparse attention.

It is a composition, not an op: keys and values are averaged block by block, and ``flash_attention`` attends to them.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn_tune.api.flash_attention import flash_attention
from attn_tune.ops.fields.arguments import check_array, check_qkv
from attn_tune.ops.fields.integers import as_integer
from attn_tune.ops.fields.packed_arguments import checked_ends
from attn_tune.ops.masks.mask_info import KV_PADDING, MaskInfo
from attn_tune.ops.native_sparse_attention.arguments import checked_block_size
from attn_tune.ops.native_sparse_attention.blocks import blocks_of
from attn_tune.ops.native_sparse_attention.problem import DEFAULT_BLOCK, Problem
from attn_tune.schema.errors import UsageError


def mean_pooling(
    array: Float[Array, "B S K width"],
    *,
    block_size: int = DEFAULT_BLOCK,
    cu_seqlens: Int[Array, " ends"] | None = None,
) -> Float[Array, "B blocks K width"]:
    """The mean of each block of ``block_size`` consecutive tokens, over those that there are in the last one.

    Differentiable. Sums are float32.

    Args:
      array: keys or values ``[B, S, K, width]``.
      block_size: tokens of a block, a power of two from 16 to 256.
      cu_seqlens: as in ``native_sparse_attention``: blocks are counted from the first token of each sequence.

    Returns:
      ``[B, ceil(S / block_size), K, width]``, of the array's dtype; with ``cu_seqlens`` ``[1, S // block_size +
      sequences, K, width]``, the blocks of one sequence after the other, and zeros behind them.

    Raises:
      UsageError: an argument is malformed; the message names it.
    """
    x = check_array("array", array)
    if x.ndim != 4 or 0 in x.shape or not jnp.issubdtype(x.dtype, jnp.floating):
        raise UsageError(f"array must be numbers [B, S, K, width], none of them zero, got {x.dtype}{list(x.shape)}")
    problem = blocks_problem(x, x, block_size, cu_seqlens)
    wide, count = x.astype(jnp.float32), problem.block_size
    if cu_seqlens is None:
        wide = jnp.pad(wide, ((0, 0), (0, problem.blocks * count - x.shape[1]), (0, 0), (0, 0)))
        wide = wide.reshape(x.shape[0], problem.blocks, count, *x.shape[2:])
    blocks = blocks_of(problem, checked_ends(cu_seqlens, x.shape[0], x.shape[1]))
    if cu_seqlens is not None:
        token = blocks.begins[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
        inside = (token < blocks.ends[:, None])[..., None, None]
        wide = jnp.where(inside, jnp.take(wide, token, axis=1, mode="clip"), 0.0)
    tokens = jnp.maximum(blocks.ends - blocks.begins, 1).astype(jnp.float32)
    return (wide.sum(2) / tokens[None, :, None, None]).astype(x.dtype)


def compressed_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B blocks K H"],
    value: Float[Array, "B blocks K V"],
    *,
    kv_len: int | None = None,
    block_size: int = DEFAULT_BLOCK,
    cu_seqlens: Int[Array, " ends"] | None = None,
    **options: Any,
) -> Any:
    """Attention of each query to the blocks that end at or before its own position, one key and value each.

    Differentiable in query, key and value, once, in reverse mode. A query before the end of the first block sees
    nothing, and gives zeros.

    Args:
      query: ``[B, T, N, H]``; query ``t`` stands at position ``t + kv_len - T``.
      key: a key for each block, as ``mean_pooling`` makes them, or any other function of a block's keys.
      value: likewise.
      kv_len: the number of keys before they were compressed; default ``T``.
      block_size: tokens of a block.
      cu_seqlens: as in ``native_sparse_attention``; blocks are numbered as by ``mean_pooling``.
      options: those of ``flash_attention``: ``softmax_scale``, ``return_lse``, ``platform``, ``mesh`` and others.

    Returns:
      What ``flash_attention`` returns.

    Raises:
      UsageError: an argument is malformed; the message names it.
      UnsupportedError: no kernel can do this here, or not the requested one.
    """
    check_qkv(query, key, value)
    if "mask_info" in options:
        raise UsageError("mask_info is that of the blocks here; a mask of yours is one of flash_attention over blocks")
    length = query.shape[1] if kv_len is None else kv_len
    problem = blocks_problem(query, query, block_size, cu_seqlens, kv_len=length)
    if key.shape[1] != problem.blocks:
        raise UsageError(
            f"key must have {problem.blocks} blocks of {problem.block_size} tokens beside {length} keys, "
            f"got shape {key.shape}"
        )
    blocks = blocks_of(problem, checked_ends(cu_seqlens, query.shape[0], query.shape[1]))
    batch = query.shape[0]

    def of_rows(x: Array) -> Array:
        return jnp.broadcast_to(x[None], (batch, *x.shape))

    structure: dict[str, Any] = {
        "q_positions": of_rows(jnp.arange(query.shape[1], dtype=jnp.int32) + problem.offset),
        "kv_positions": of_rows(blocks.begins + problem.block_size - 1),
    }
    if cu_seqlens is not None:
        is_block = blocks.ends > blocks.begins
        owners = jnp.take(blocks.firsts, blocks.begins, mode="clip")
        structure["q_segment_ids"] = of_rows(blocks.firsts)
        structure["kv_segment_ids"] = of_rows(jnp.where(is_block, owners, KV_PADDING))
    return flash_attention(query, key, value, mask_info=MaskInfo(**structure, causal=True), **options)


def blocks_problem(q: Array, k: Array, block_size: Any, cu_seqlens: Any, *, kv_len: int | None = None) -> Problem:
    """A problem that has the blocks of these queries and keys.

    Raises:
      UsageError: no such problem can be.
    """
    ends = checked_ends(cu_seqlens, q.shape[0], q.shape[1])
    return Problem(
        batch=q.shape[0] if ends is None else ends.shape[0] - 1,
        q_len=q.shape[1],
        # What is no integer the problem refuses by name.
        kv_len=k.shape[1] if kv_len is None else as_integer(kv_len) or kv_len,
        num_q_heads=1,
        num_kv_heads=1,
        head_dim=q.shape[3],
        v_head_dim=q.shape[3],
        num_selected=1,
        block_size=checked_block_size(block_size),
        is_packed=ends is not None,
    )
