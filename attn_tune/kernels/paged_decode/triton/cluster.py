"""The launch whose clusters of programs share the keys of a sequence, and combine their parts themselves.

The programs of a cluster run at once on neighbouring multiprocessors and can wait for one another (Hopper and later),
so that there is no second launch. Each has an equal share of the sequence's keys; its part goes to memory in float32,
and after the wait each combines some rows of all parts, weighed by their lse (Flash-Decoding).
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.device.cluster import wait_for_cluster
from attn_tune.kernels.paged_decode._triton.config import Config
from attn_tune.kernels.paged_decode._triton.schedule import blocks_of, clamped
from attn_tune.kernels.paged_decode._triton.static import Static
from attn_tune.kernels.paged_decode.triton.latent import walk_tile
from attn_tune.kernels.paged_decode.triton.walk import prefetch_pages, store_part, store_rows
from attn_tune.ops.paged_decode.operands import Operands


def clustered(static: Static, config: Config, operands: Operands) -> dict[str, jax.Array]:
    """``out`` [B, T, N, V] in q's dtype and ``lse`` [B, T, N] in float32."""
    cluster = static.cluster or 1
    shape = (static.batch, static.q_len, static.num_q_heads)
    lanes = static.num_kv_heads * static.tiles
    parts = (static.batch * cluster, lanes, static.block_q)
    rows = -(-min(static.rows, static.block_q) // cluster)
    out, lse, _, _ = triton_call(
        cluster_kernel,
        *operands,
        out_types=[
            jax.ShapeDtypeStruct((*shape, static.v_head_dim), operands.q.dtype),
            jax.ShapeDtypeStruct(shape, jnp.float32),
            jax.ShapeDtypeStruct((*parts, static.v_head_dim), jnp.float32),
            jax.ShapeDtypeStruct(parts, jnp.float32),
        ],
        grid=(static.batch * lanes * cluster, 1, 1),
        constexprs={"held": triton.next_power_of_2(rows), "static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        maxnreg=config.max_registers,
        cluster=cluster,
        name="paged_decode_cluster",
    )
    return {"out": out, "lse": lse}


@triton.jit
def cluster_kernel(
    q,
    k,
    v,
    page_table,
    kv_lens,
    sinks,
    k_scale,
    v_scale,
    out,
    lse,
    part_out,
    part_lse,
    held: tl.constexpr,
    static: tl.constexpr,
):
    """One program per share of a sequence's keys, key head and tile of rows; it combines ``held`` rows."""
    lanes: tl.constexpr = static.num_kv_heads * static.tiles
    member = tl.program_id(0) % static.cluster
    lane = tl.program_id(0) // static.cluster % lanes
    sequence = tl.program_id(0) // (static.cluster * lanes)
    kv_head = lane // static.tiles
    first_row = lane % static.tiles * static.block_q
    if v is None:
        v = k + static.v_offset
    prefetch_pages(page_table, static)

    length = clamped(tl.load(kv_lens + sequence), static)
    own = blocks_of(length, static)
    # At least one, so that of an empty sequence only the first program begins at its first block, and counts the sink.
    share = tl.maximum((own + static.cluster - 1) // static.cluster, 1)
    offset = member * share
    count = tl.minimum(tl.maximum(own - offset, 0), share)
    arrays = (q, k, v, page_table, sinks, k_scale, v_scale)
    state = walk_tile(arrays, sequence, kv_head, first_row, length, offset, count, static)
    store_part(part_out, part_lse, state, (sequence * static.cluster + member) * lanes + lane, first_row, static)
    wait_for_cluster()

    tile_row = member * held + tl.arange(0, held)
    row = tl.where(tile_row < static.block_q, first_row + tile_row, static.rows)
    parts = ((sequence * static.cluster + tl.arange(0, static.cluster)) * lanes + lane).to(tl.int64)
    offsets = parts[:, None] * static.block_q + tile_row[None, :]
    cols = tl.arange(0, static.block_v)
    is_row = row < static.rows
    # Past the first-level cache, which is not told what other multiprocessors store.
    log_sums = tl.load(part_lse + offsets, mask=is_row[None, :], other=float("-inf"), cache_modifier=".cg")
    values = tl.load(
        part_out + offsets[:, :, None] * static.v_head_dim + cols[None, None, :],
        mask=is_row[None, :, None] & (cols < static.v_head_dim)[None, None, :],
        other=0.0,
        cache_modifier=".cg",
    )
    maximum = tl.max(log_sums, 0)
    shares = tl.exp2(log_sums - tl.where(maximum == float("-inf"), 0.0, maximum)[None, :])
    # A part that saw nothing was stored as zero.
    merged = (tl.sum(values * shares[:, :, None], 0), tl.sum(shares, 0), maximum)
    store_rows(out, lse, merged, sequence, kv_head, row, static)
