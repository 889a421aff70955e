"""The launch of a ragged call for tiles of queries, which copies what the launch that decodes has found.

A tile holds queries of one sequence and of all heads that share keys. Which sequence and which queries a program has it
finds from ``cu_q_lens``, so that no length is needed where the call is traced. The softmax is that of FlashAttention-2
(arXiv 2307.08691, algorithm 1) in base 2; keys that all rows of a tile see are not masked. Queries that are codes are
multiplied with the codes of keys in 8 bits, all others with keys in 16 bits or more.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.device.tile import LN2, LOG2E
from attn_tune.kernels.lang.triton.interpret import is_interpreted
from attn_tune.kernels.paged_decode._triton.config import Config as DecodeConfig
from attn_tune.kernels.paged_decode._triton.schedule import clamped
from attn_tune.kernels.paged_decode._triton.static import static_of
from attn_tune.kernels.paged_decode.triton.codes import wide
from attn_tune.kernels.ragged_paged._triton.config import TileConfig
from attn_tune.kernels.ragged_paged._triton.decoding import decode_problem, decode_shapes
from attn_tune.ops.ragged_paged.operands import Operands
from attn_tune.ops.ragged_paged.problem import Problem


def prefill(
    problem: Problem, config: TileConfig, operands: Operands, decoded: tuple[jax.Array | None, jax.Array | None]
) -> dict[str, jax.Array]:
    """``out`` [tokens, N, V] in the problem's dtype and ``lse`` [tokens, N] in float32.

    Args:
      decoded: the output and the natural lse of the launch that decodes, or None of both.
    """
    tokens, heads, _ = operands.q.shape
    # The tile of this launch, for the constants of the cache that both have.
    tile = DecodeConfig(
        block_q=config.block_q, block_k=config.block_k, num_warps=config.num_warps, num_stages=config.num_stages
    )
    ptx = not is_interpreted(prefill_kernel)
    static = static_of(decode_problem(problem), tile, decode_shapes(operands), ptx=ptx)
    queries = max(1, config.block_q // static.group_size)
    # Each sequence, what is copied, and what belongs to none has one tile that is not full, at most.
    tiles = -(-tokens // queries) + min(static.batch, tokens) + 2
    out, lse = triton_call(
        prefill_kernel,
        *operands,
        *decoded,
        out_types=[
            jax.ShapeDtypeStruct((tokens, heads, static.v_head_dim), jnp.dtype(problem.dtype)),
            jax.ShapeDtypeStruct((tokens, heads), jnp.float32),
        ],
        grid=(tiles * static.num_kv_heads, 1, 1),
        constexprs={
            "tokens": tokens,
            "queries": queries,
            "causal": problem.causal,
            "q_scale_kind": problem.q_scale,
            "static": static,
        },
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        maxnreg=config.max_registers,
        name="ragged_paged",
    )
    return {"out": out, "lse": lse}


@triton.jit
def prefill_kernel(
    q,
    k,
    v,
    page_table,
    kv_lens,
    cu_q_lens,
    sinks,
    k_scale,
    v_scale,
    q_scale,
    decoded,
    decoded_lse,
    out,
    lse,
    tokens: tl.constexpr,
    queries: tl.constexpr,
    causal: tl.constexpr,
    q_scale_kind: tl.constexpr,
    static: tl.constexpr,
):
    """One program per tile of ``queries`` queries and key head; those with most keys of a sequence first.

    Of ``static``, what counts queries (``q_len``, ``rows``, ``tiles``) is that of decoding, and is not read here.
    """
    kv_head = tl.program_id(0) % static.num_kv_heads
    index = tl.program_id(0) // static.num_kv_heads
    if v is None:
        v = k + static.v_offset

    sequences = tl.arange(0, static.block_b)
    is_sequence = sequences < static.batch
    begins = tl.load(cu_q_lens + sequences, mask=is_sequence, other=tokens)
    ends = tl.load(cu_q_lens + sequences + 1, mask=is_sequence, other=tokens)
    new = tl.maximum(ends - begins, 0)
    decodes = 0
    if decoded is not None:
        # Those before the first sequence that has not one query, its own number.
        others = (begins != sequences) | (new != 1) | (sequences >= static.batch)
        decodes = tl.min(tl.where(others, sequences, static.block_b), 0)
    tiles = tl.where(is_sequence & (sequences >= decodes), (new + queries - 1) // queries, 0)
    last_tiles = tl.cumsum(tiles, 0)
    walked = tl.sum(tiles, 0)
    copied = (decodes + queries - 1) // queries
    if index < walked:
        tile = walked - 1 - index
        sequence = tl.sum((last_tiles <= tile).to(tl.int32), 0)
        is_own = sequences == sequence
        own = tile - tl.sum(tl.where(sequences < sequence, tiles, 0), 0)
        first = tl.sum(tl.where(is_own, begins, 0), 0) + own * queries
        end = tl.sum(tl.where(is_own, ends, 0), 0)
        length = clamped(tl.load(kv_lens + sequence), static)
        arrays = (q, k, v, page_table, sinks, k_scale, v_scale, q_scale)
        state = attend(arrays, sequence, kv_head, first, end, length, queries, causal, q_scale_kind, static)
        store(out, lse, state, kv_head, first, end, queries, static)
    elif index < walked + copied:
        if decoded is not None:
            copy(out, lse, decoded, decoded_lse, kv_head, (index - walked) * queries, decodes, queries, static)
    else:
        # Behind the last sequence.
        first = tl.load(cu_q_lens + static.batch) + (index - walked - copied) * queries
        if first < tokens:
            nothing = tl.full([static.block_q, static.block_v], 0.0, tl.float32)
            unseen = tl.full([static.block_q], float("-inf"), tl.float32)
            store(out, lse, (nothing, unseen), kv_head, first, tokens, queries, static)


@triton.jit
def rows_of(kv_head, first, end, queries: tl.constexpr, static: tl.constexpr):
    """The query, the place among rows of all heads, and whether there is one, of each row of a tile."""
    row = tl.arange(0, static.block_q)
    query = first + row // static.group_size
    head = kv_head * static.group_size + row % static.group_size
    is_row = (row < queries * static.group_size) & (query < end)
    return query, query.to(tl.int64) * static.num_q_heads + head, is_row


@triton.jit
def store(out, lse, state, kv_head, first, end, queries: tl.constexpr, static: tl.constexpr):
    """Stores the rows of a tile, the output and the base-2 lse."""
    values, log_sum = state
    cols = tl.arange(0, static.block_v)[None, :]
    _, rows, is_row = rows_of(kv_head, first, end, queries, static)
    tl.store(lse + rows, log_sum * LN2, mask=is_row)
    inside = is_row[:, None] & (cols < static.v_head_dim)
    tl.store(out + rows[:, None] * static.v_head_dim + cols, values.to(out.dtype.element_ty), mask=inside)


@triton.jit
def copy(out, lse, decoded, decoded_lse, kv_head, first, end, queries: tl.constexpr, static: tl.constexpr):
    """Copies rows of the launch that decodes."""
    cols = tl.arange(0, static.block_v)[None, :]
    _, rows, is_row = rows_of(kv_head, first, end, queries, static)
    tl.store(lse + rows, tl.load(decoded_lse + rows, mask=is_row), mask=is_row)
    inside = is_row[:, None] & (cols < static.v_head_dim)
    places = rows[:, None] * static.v_head_dim + cols
    tl.store(out + places, tl.load(decoded + places, mask=inside), mask=inside)


@triton.jit
def attend(
    arrays,
    sequence,
    kv_head,
    first,
    end,
    length,
    queries: tl.constexpr,
    causal: tl.constexpr,
    q_scale_kind: tl.constexpr,
    static: tl.constexpr,
):
    """The output and the base-2 lse of a tile's rows; of those that see nothing zero and minus infinity, or a sink."""
    q, k, v, page_table, sinks, k_scale, v_scale, q_scale = arrays
    cols = tl.arange(0, static.block_h)[None, :]
    query, rows, is_row = rows_of(kv_head, first, end, queries, static)
    inside = is_row[:, None] & (cols < static.head_dim)
    q_tile = tl.load(q + rows[:, None] * static.head_dim + cols, mask=inside, other=0.0)

    # What multiplies a row of logits, and the output.
    dot_scale = static.dot_scale
    out_scale = 1.0
    if static.kv_scale == "tensor":
        dot_scale = tl.load(k_scale) * static.dot_scale
        out_scale = tl.load(v_scale)
    if static.kv_scale == "head":
        dot_scale = tl.load(k_scale + kv_head) * static.dot_scale
        out_scale = tl.load(v_scale + kv_head)

    # Float16 holds every code exactly, and is the one conversion from float8 that the hardware has. Rows of bfloat16
    # queries become at most 2 before they are float16, by a power of two.
    row_scale = dot_scale
    if static.has_codes and q_tile.dtype == tl.bfloat16:
        largest = tl.max(tl.abs(q_tile.to(tl.float32)), 1)
        power = tl.exp2(tl.floor(tl.log2(tl.maximum(largest, 1e-30))))[:, None]
        q_tile = (q_tile.to(tl.float32) / power).to(tl.float16)
        row_scale *= power
    if q_scale_kind == "tensor":
        row_scale *= tl.load(q_scale)
    if q_scale_kind == "token":
        row_scale *= tl.load(q_scale + rows, mask=is_row, other=0.0)[:, None]

    maximum = tl.full([static.block_q], float("-inf"), tl.float32)
    total = tl.full([static.block_q], 0.0, tl.float32)
    acc = tl.full([static.block_q, static.block_v], 0.0, tl.float32)
    if sinks is not None:
        head = kv_head * static.group_size + tl.arange(0, static.block_q) % static.group_size
        maximum = tl.load(sinks + head) * LOG2E
        total += tl.where(maximum == float("-inf"), 0.0, 1.0)

    # The last query of a sequence stands at its last token; of a call that is not causal all do.
    if causal:
        position = query + (length - end)
        first_position = first + (length - end)
        stop = tl.maximum(tl.minimum(first + queries, end) + (length - end), 0)
    else:
        position = query * 0 + (length - 1)
        first_position = length - 1
        stop = length
    lowest = length * 0
    whole = tl.maximum(first_position + 1, 0) // static.block_k * static.block_k
    if static.left is not None:
        lowest = tl.maximum(first_position - static.left, 0)
        whole = lowest // static.block_k * static.block_k
    begin = lowest // static.block_k * static.block_k

    k += kv_head.to(tl.int64) * static.k_steps[2]
    v += kv_head.to(tl.int64) * static.v_steps[2]
    if static.kv_scale == "token":
        k_scale += kv_head.to(tl.int64) * static.scale_steps[2]
        v_scale += kv_head.to(tl.int64) * static.scale_steps[2]
    if static.table_width > 0:
        page_table += sequence.to(tl.int64) * static.table_width
    arrays = (k, v, page_table, k_scale, v_scale)
    state = (acc, total, maximum)
    # Keys that every row sees, and those that some do not.
    for start in tl.range(begin, whole, static.block_k):
        state = step(state, arrays, q_tile, row_scale, position, sequence, start, lowest, stop, False, static)
    for start in tl.range(whole, stop, static.block_k):
        state = step(state, arrays, q_tile, row_scale, position, sequence, start, lowest, stop, True, static)
    acc, total, maximum = state
    seen = total > 0
    safe = tl.where(seen, total, 1.0)
    log_sum = tl.where(seen, maximum + tl.log2(safe), float("-inf"))
    return acc * (out_scale * tl.where(seen, 1.0 / safe, 0.0))[:, None], log_sum


@triton.jit
def step(
    state,
    arrays,
    q_tile,
    row_scale,
    position,
    sequence,
    start,
    lowest,
    stop,
    MASKED: tl.constexpr,
    static: tl.constexpr,
):
    """The accumulator, denominator and maximum after one tile of keys."""
    acc, total, maximum = state
    k, v, page_table, k_scale, v_scale = arrays
    cols_h = tl.arange(0, static.block_h)[None, :]
    cols_v = tl.arange(0, static.block_v)[None, :]
    key = start + tl.arange(0, static.block_k)
    is_key = key >= 0
    if MASKED:
        is_key = (key >= lowest) & (key < stop)
    if static.table_width == 0:
        page = sequence
        slot = key.to(tl.int64) if static.wide_slots else key
    elif static.one_page:
        page = tl.load(page_table + start // static.page_size)
        slot = start % static.page_size + tl.arange(0, static.block_k)
    else:
        page = tl.load(page_table + key // static.page_size, mask=is_key, other=0)
        slot = key % static.page_size
    page = page.to(tl.int64)
    k_rows = (page * static.k_steps[0] + slot * static.k_steps[1])[:, None]
    k_tile = tl.load(k + k_rows + cols_h, mask=is_key[:, None] & (cols_h < static.head_dim), other=0.0)
    # Weights of queries that are codes are float16, as of 16-bit queries over codes.
    is_narrow: tl.constexpr = q_tile.dtype.primitive_bitwidth == 8
    dtype: tl.constexpr = tl.float16 if is_narrow else q_tile.dtype
    if is_narrow:
        x = tl.dot(q_tile, tl.trans(k_tile)).to(tl.float32) * row_scale
    else:
        k_tile = wide(k_tile, dtype, static.ptx, False)
        x = tl.dot(q_tile, tl.trans(k_tile), input_precision=static.precision) * row_scale
    if static.kv_scale == "token":
        scales = page * static.scale_steps[0] + slot * static.scale_steps[1]
        x *= tl.load(k_scale + scales, mask=is_key, other=0.0)[None, :]
    if static.soft_cap is not None:
        # tanh by exp2: exact limits at both ends, and libdevice is not needed. tanh.approx has 11 bits only.
        x = (1.0 - 2.0 / (1.0 + tl.exp2(x * (2.0 * LOG2E)))) * static.soft_cap
    if MASKED:
        visible = is_key[None, :] & (key[None, :] <= position[:, None])
        if static.left is not None:
            visible &= key[None, :] >= position[:, None] - static.left
        x = tl.where(visible, x, float("-inf"))

    new_maximum = tl.maximum(maximum, tl.max(x, 1))
    shift = new_maximum
    if MASKED:
        shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    weights = tl.exp2(x - shift[:, None])
    correction = tl.exp2(maximum - shift)
    total = total * correction + tl.sum(weights, 1)
    v_rows = (page * static.v_steps[0] + slot * static.v_steps[1])[:, None]
    v_tile = tl.load(v + v_rows + cols_v, mask=is_key[:, None] & (cols_v < static.v_head_dim), other=0.0)
    v_tile = wide(v_tile, dtype, static.ptx, True)
    acc *= correction[:, None]
    if static.kv_scale == "token":
        weights *= tl.load(v_scale + scales, mask=is_key, other=0.0)[None, :]
        # The largest becomes one: scales may be too small for float16.
        highest = tl.max(weights, 1)
        highest = tl.where(highest > 0, highest, 1.0)[:, None]
        acc += tl.dot((weights / highest).to(dtype), v_tile, input_precision=static.precision) * highest
    else:
        acc = tl.dot(weights.to(dtype), v_tile, acc, input_precision=static.precision)
    return acc, total, new_maximum
