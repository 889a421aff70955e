"""Native sparse attention by ejkernel's arguments."""

from typing import Any

from jaxtyping import Array, Float, Int

import attn_tune
from attn_tune.integrations.ejkernel.arguments import kernel_of, refuse
from attn_tune.ops.fields.integers import as_integer
from attn_tune.schema.errors import UsageError

BLOCK_SIZE = 64


def native_sparse_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K V"],
    g_cmp: Float[Array, "B T N"] | None = None,
    g_slc: Float[Array, "B T N"] | None = None,
    block_indices: Int[Array, "B T K top"] | None = None,
    block_counts: Int[Array, "B T K"] | int = 16,
    cu_seqlens: Int[Array, " ends"] | None = None,
    /,
    *,
    softmax_scale: float | None = None,
    platform: str | None = None,
    cfg: Any = None,
) -> Float[Array, "B T N V"]:
    """``attn_tune.native_sparse_attention`` by the arguments of ``ejkernel.modules.native_sparse_attention``.

    The size of a block decides the result: it is ``cfg.block_size``, or 64, where ejkernel's tuner may choose another
    one. With ``g_cmp`` the blocks are those of ``attn_tune.select_blocks``: the query's own and the highest scores.

    Args:
      query, key, value: ``[B, T, N, H]``, ``[B, T, K, H]``, ``[B, T, K, V]``.
      g_cmp: the gate of the compressed branch, ``[B, T, N]``; None: there is none, and ``block_indices`` is needed.
      g_slc: the gate of the selected branch; None: one.
      block_indices: ``[B, T, K, top]``; refused with ``g_cmp``, which selects blocks itself.
      block_counts: how many blocks count; with ``g_cmp`` a number.
      cu_seqlens: offsets of sequences end to end in a batch of one.

    Raises:
      UsageError: an argument is malformed or cannot be honoured.
    """
    name = "native_sparse_attention"
    kernel = kernel_of(name, platform, cfg)
    block_size = getattr(cfg, "block_size", BLOCK_SIZE)
    counts = block_counts
    if g_cmp is not None:
        refuse(name, "g_cmp selects blocks itself; call attn_tune.native_sparse_attention", block_indices=block_indices)
        number = as_integer(block_counts)
        if number is None:
            raise UsageError(f"{name}: block_counts must be a number with g_cmp; select blocks before the call")
        block_indices = attn_tune.select_blocks(
            query,
            attn_tune.mean_pooling(key, block_size=block_size, cu_seqlens=cu_seqlens),
            num_selected=number,
            num_first=0,
            num_near=1,
            block_size=block_size,
            softmax_scale=softmax_scale,
            cu_seqlens=cu_seqlens,
            kv_len=key.shape[1],
        )
        counts = None
    elif block_indices is None:
        raise UsageError(f"{name}: block_indices is needed without g_cmp; attn_tune.select_blocks makes them")
    elif (number := as_integer(counts)) is not None:
        counts = min(number, block_indices.shape[-1])
    return attn_tune.native_sparse_attention(
        query,
        key,
        value,
        block_indices,
        block_size=block_size,
        block_counts=counts,
        g_slc=g_slc,
        g_cmp=g_cmp,
        softmax_scale=softmax_scale,
        cu_seqlens=cu_seqlens,
        platform=kernel,
    )
