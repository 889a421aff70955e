"""The launches of decoding, and the one whose programs share the keys of all sequences, or have a sequence each.

A tile holds the rows of all query heads that share keys, so that keys and values are read once for the group. Whole
sequences are finished here; of those that are cut, each part leaves its normalised output and its lse in float32 for
``combine`` (Flash-Decoding). The softmax is that of FlashAttention-2 (arXiv 2307.08691, algorithm 1) in base 2.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.interpret import is_interpreted
from attn_tune.kernels.paged_decode._triton.combine import combine
from attn_tune.kernels.paged_decode._triton.config import Config
from attn_tune.kernels.paged_decode._triton.schedule import all_blocks, blocks_of, clamped, piece
from attn_tune.kernels.paged_decode._triton.static import static_of
from attn_tune.kernels.paged_decode.triton.cluster import clustered
from attn_tune.kernels.paged_decode.triton.latent import walk_tile
from attn_tune.kernels.paged_decode.triton.walk import prefetch_pages, store_part, store_rows
from attn_tune.ops.paged_decode.operands import Operands
from attn_tune.ops.paged_decode.problem import Problem


def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, jax.Array]:
    """``out`` [B, T, N, V] in q's dtype and ``lse`` [B, T, N] in float32."""
    static = static_of(problem, config, operands, ptx=not is_interpreted(decode_kernel))
    shape = (static.batch, static.q_len, static.num_q_heads)
    if static.cluster is not None:
        return clustered(static, config, operands)
    lanes, pieces = static.num_kv_heads * static.tiles, static.num_programs or static.batch
    # Only the first and the last sequence of a piece can be cut.
    parts = (2 * pieces if static.num_programs else 1, lanes, static.block_q)
    out_types = [
        jax.ShapeDtypeStruct((*shape, static.v_head_dim), operands.q.dtype),
        jax.ShapeDtypeStruct(shape, jnp.float32),
        jax.ShapeDtypeStruct((*parts, static.v_head_dim), jnp.float32),
        jax.ShapeDtypeStruct(parts, jnp.float32),
    ]
    out, lse, part_out, part_lse = triton_call(
        decode_kernel,
        *operands,
        out_types=out_types,
        grid=(pieces * lanes, 1, 1),
        constexprs={"static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        maxnreg=config.max_registers,
        name="paged_decode",
    )
    if static.num_programs:
        out, lse = combine(part_out, part_lse, operands.kv_lens, operands.sinks, out, lse, static)
    return {"out": out, "lse": lse}


@triton.jit
def decode_kernel(
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
    static: tl.constexpr,
):
    """One program per piece of the line of keys, key head and tile of rows."""
    lanes: tl.constexpr = static.num_kv_heads * static.tiles
    lane = tl.program_id(0) % lanes
    program = tl.program_id(0) // lanes
    kv_head = lane // static.tiles
    first_row = lane % static.tiles * static.block_q
    if v is None:
        v = k + static.v_offset
    if static.num_programs is None:
        # Of an empty sequence the first block is walked too, though it shows nothing: the rows must be written.
        length = clamped(tl.load(kv_lens + program), static)
        count = blocks_of(length, static)
        arrays = (q, k, v, page_table, sinks, k_scale, v_scale)
        state = walk_tile(arrays, program, kv_head, first_row, length, 0, count, static)
        store_rows(out, lse, state, program, kv_head, first_row + tl.arange(0, static.block_q), static)
    else:
        prefetch_pages(page_table, static)
        blocks = all_blocks(kv_lens, static)
        total, equal = piece(blocks, static)
        position = program * equal
        end = tl.minimum(position + equal, total)
        done = tl.cumsum(blocks, 0) <= position
        sequence = tl.sum(done.to(tl.int32), 0)
        offset = position - tl.sum(tl.where(done, blocks, 0), 0)
        while position < end:
            length = clamped(tl.load(kv_lens + sequence), static)
            own = blocks_of(length, static)
            count = tl.minimum(own - offset, end - position)
            if count > 0:
                arrays = (q, k, v, page_table, sinks, k_scale, v_scale)
                state = walk_tile(arrays, sequence, kv_head, first_row, length, offset, count, static)
                if count == own:
                    row = first_row + tl.arange(0, static.block_q)
                    store_rows(out, lse, state, sequence, kv_head, row, static)
                else:
                    # A sequence's first part is the last of a program's piece.
                    part = 2 * program + (offset == 0).to(tl.int32)
                    store_part(part_out, part_lse, state, part * lanes + lane, first_row, static)
            position += count
            offset = 0
            sequence += 1
