"""The launch of JAX's ragged paged attention for TPU, with the logsumexp that its sums hold.

The library's own launch keeps the largest logit and the denominator of each row in scratch memory and drops them. Here
its kernel has a launch around it that also writes their logsumexp, one number a row; what it computes is the library's.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import kernel as library
from jaxtyping import Array, Float, Int

from attn_tune.kernels.lang.pallas_tpu.cache_limits import check_tables
from attn_tune.kernels.lang.pallas_tpu.memory import KIB, LANES, round_up
from attn_tune.kernels.lang.pallas_tpu.ragged.config import Config
from attn_tune.kernels.lang.pallas_tpu.ragged.limits import tables

_NAME = "ragged_paged_attention"


def launch(
    config: Config,
    q: Float[Array, "tokens N H"],
    kv_pages: Float[Array, "pages P both H"],
    lengths: Int[Array, " B"],
    table: Int[Array, "B width"],
    ends: Int[Array, " ends"],
    num_seqs: Int[Array, " one"],
    scales: Float[Array, " two"] | None,
    *,
    scale: float,
    window: int | None,
    soft_cap: float | None,
) -> tuple[Float[Array, "tokens N H"], Float[Array, "tokens N"]]:
    """The output in q's dtype and the natural lse of rows of the first ``num_seqs`` sequences; all others are garbage.

    Args:
      lengths: of each sequence, at least one.
      table: pages that exist.
      scales: what codes of keys and of values are multiplied by; None for a cache without codes.
      window: tokens that a query sees, its own included.

    Raises:
      UnsupportedError: the table does not fit scalar memory.
    """
    check_tables(tables(*table.shape))
    tokens, num_q_heads, width = q.shape
    _, page_size, both, _ = kv_pages.shape
    group = num_q_heads // (both // 2)
    q_heads, some_both = library.get_min_heads_per_blk(num_q_heads, both, q.dtype, kv_pages.dtype)
    kv_heads, head_blocks = some_both // 2, num_q_heads // q_heads
    queries = config.num_queries_per_block
    rows, query_blocks = queries * group, -(-tokens // queries)
    lanes = round_up(rows, LANES)
    prefetched = (lengths, table, ends, jnp.zeros(2, jnp.int32), num_seqs, *(() if scales is None else (scales,)))
    rows_spec = pl.BlockSpec((queries, q_heads, width), lambda heads, block, *_: (block, heads, 0))
    lse_spec = pl.BlockSpec((None, None, kv_heads, lanes), lambda heads, block, *_: (heads, block, 0, 0))
    sums = pltpu.VMEM((kv_heads, rows, LANES), jnp.float32)
    static = {"sm_scale": scale, "sliding_window": window, "soft_cap": soft_cap}
    run = pl.pallas_call(
        functools.partial(_kernel, library.ragged_paged_attention_kernel, static, scales is not None),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(prefetched),
            in_specs=[rows_spec, pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=[rows_spec, lse_spec],
            grid=(head_blocks, query_blocks),
            scratch_shapes=[
                pltpu.VMEM((2, config.num_kv_pages_per_block, page_size, some_both, width), kv_pages.dtype),
                pltpu.SemaphoreType.DMA((2,)),
                sums,
                sums,
                pltpu.VMEM((queries, q_heads, width), jnp.float32),
            ],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary", "arbitrary"),
            vmem_limit_bytes=None if config.vmem_limit_kib is None else KIB * config.vmem_limit_kib,
        ),
        out_shape=[
            jax.ShapeDtypeStruct(q.shape, q.dtype),
            jax.ShapeDtypeStruct((head_blocks, query_blocks, kv_heads, lanes), jnp.float32),
        ],
        name=_NAME,
    )
    # The kernel leaves the precision of its products to the context. 16-bit operands are exact in one pass.
    is_full = q.dtype == jnp.float32
    with jax.default_matmul_precision("highest") if is_full else contextlib.nullcontext():
        out, lse = run(*prefetched, q, kv_pages)
    # Rows of a block are its queries, each with all heads of a group.
    lse = lse[..., :rows].reshape(head_blocks, query_blocks, kv_heads, queries, group)
    lse = lse.transpose(1, 3, 0, 2, 4).reshape(query_blocks * queries, num_q_heads)
    return out, lse[:tokens]


def _kernel(kernel: Callable[..., None], static: dict[str, Any], has_scales: bool, *refs: Any) -> None:
    """Runs ``kernel``, then writes the logsumexp of its rows."""
    prefetched, (q, kv_pages, out, lse, buffers, semaphores, total, largest, sums) = refs[:-9], refs[-9:]
    scales = {}
    if has_scales:
        *prefetched, of_codes = prefetched
        scales = {"k_scale": of_codes[0], "v_scale": of_codes[1]}
    kernel(*prefetched, q, kv_pages, out, buffers, semaphores, total, largest, sums, **static, **scales)
    heads, rows, _ = total.shape
    for head in range(heads):
        for begin in range(0, rows, LANES):
            count = min(LANES, rows - begin)
            some = pl.ds(begin, count)
            # All lanes of a row hold its number. Of row i lane i is kept, and the rows are added.
            numbers = largest[head, some, :] + jnp.log(total[head, some, :])
            row, lane = (jax.lax.broadcasted_iota(jnp.int32, (count, LANES), axis) for axis in (0, 1))
            lse[head : head + 1, begin : begin + LANES] = jnp.sum(
                jnp.where(row == lane, numbers, 0.0), axis=0, keepdims=True
            )
