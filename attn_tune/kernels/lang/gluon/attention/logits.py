"""Device code of the softmax: a tile of q.k becomes weights, in the registers of the warps that multiplied."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attn_tune.kernels.lang.gluon.attention.config import ROWS, WARPS
from attn_tune.kernels.lang.gluon.attention.tiles import place_of
from attn_tune.kernels.lang.gluon.device import approximate, mix, vector_layout
from attn_tune.kernels.lang.triton.device.logits import COLUMN_FACTOR, FACTOR, ROW_FACTOR

LOG2E = gl.constexpr(1.4426950408889634)
_ROWS = gl.constexpr(ROWS)
_WARPS = gl.constexpr(WARPS)
# How far, in base 2, logits may exceed the maximum that is kept: weights stay below 2**8, which 16 bits hold as well.
_SLACK = gl.constexpr(8.0)
# Above it the error of tanh near zero, 2e-7, would show in a 16-bit output.
_LARGE_CAP = gl.constexpr(1000.0)


class Rows(NamedTuple):
    """The query rows of one group of warps: positions, segments, the row's part of the dropout hash [64]; their sink.

    What is absent holds the positions, or 0, and is not looked at.
    """

    position: gl.tensor
    segment: gl.tensor
    random: gl.tensor
    sink: gl.tensor


@gluon.jit
def load_seeds(dropout, static: gl.constexpr):
    """The seed's hash and the first batch entry and head of this shard; loaded once."""
    seeds = (dropout, dropout, dropout)
    if static.keep_threshold is not None:
        seed = mix(gl.load(dropout) + 0x9E3779B9)
        seeds = (seed, gl.load(dropout + 1), gl.load(dropout + 2))
    return seeds


@gluon.jit
def load_rows(first, batch, head, pointers, layout: gl.constexpr, plan: gl.constexpr, static: gl.constexpr):
    """The rows from ``first`` on, of a tile of logits in ``layout``; ``pointers``: segments, sinks, seeds."""
    q_segments, sinks, seeds = pointers
    index = first + gl.arange(0, _ROWS, gl.SliceLayout(1, layout))
    position = index + static.offset
    segment = position
    random = position
    sink = head * 0.0
    if static.has_segments:
        ids = q_segments + batch.to(gl.int64) * static.q_len + index
        segment = gl.load(ids, mask=index < static.q_len, other=-1)
    if static.keep_threshold is not None:
        seed, first_batch, first_head = seeds
        absolute_batch = first_batch + batch.to(gl.uint32)
        seed = mix(seed ^ (absolute_batch * 0x85EBCA6B))
        absolute_head = first_head + head.to(gl.uint32)
        seed = mix(seed ^ (absolute_head * 0xC2B2AE35))
        # As ``mix`` without its last step: that is its own inverse, and is the first of the next hash.
        lane = gl.arange(0, _ROWS, gl.SliceLayout(1, layout))
        random = seed + (first + (lane - (lane & 8))).to(gl.uint32)
        random ^= random >> 16
        random *= 0x7FEB352D
        random ^= random >> 15
        random *= 0x846CA68B
    if plan.has_sinks:
        sink = gl.load(sinks + head) * LOG2E
    return Rows(position, segment, random, sink)


@gluon.jit
def squash(product, plan: gl.constexpr, static: gl.constexpr):
    """Scales q.k: rounded to the logits' dtype, through the soft cap, and in base 2 but for ``plan.late_scale``."""
    x = product
    if static.logits_dtype == "float32":
        if static.dot_scale != 1.0:
            x = product * static.dot_scale
    else:
        if static.logits_dtype == "bfloat16":
            x = (product * static.scale).to(gl.bfloat16).to(gl.float32)
        else:
            x = (product * static.scale).to(gl.float16).to(gl.float32)
        x = x * static.unit
    if static.soft_cap is not None:
        if plan.fast_tanh:
            x = approximate("tanh.approx.f32", x)
        else:
            # Exact limits at both ends. Near zero it is off by 2e-7, which only a large cap can show.
            tanh = 1.0 - 2.0 * approximate("rcp.approx.ftz.f32", 1.0 + gl.exp2(x * (2.0 * LOG2E)))
            if static.soft_cap > _LARGE_CAP:
                # There the odd series up to x**9.
                square = x * x
                series = -17.0 / 315 + square * (62.0 / 2835)
                series = 1.0 + square * (-1.0 / 3 + square * (2.0 / 15 + square * series))
                tanh = gl.where(gl.abs(x) < 0.3, x * series, tanh)
            x = tanh
    return x


@gluon.jit
def crosses_edge(block, info, EDGES: gl.constexpr):
    """Whether tile ``block`` of the keys may cross an edge; ``EDGES`` says that "all", "none" or "some" do."""
    edge = EDGES == "all"
    if EDGES == "some":
        edge = (block < info.full_begin) | (block >= info.full_end)
    return edge


@gluon.jit
def mixes_segments(block, info, static: gl.constexpr):
    """Whether tile ``block`` of the keys may have another segment than some row."""
    mixed = False
    if static.has_segments:
        mixed = (block < info.same_begin) | (block >= info.same_end)
    return mixed


@gluon.jit
def load_key_segments(block, info, mixed, kv_segments, static: gl.constexpr):
    """Loads the segments [block_k] of tile ``block`` of the keys, one a thread; zeros if they are not compared.

    The load starts before the products and ends in shared memory beside them. In the layout of the logits a thread has
    32 columns: the segments would take registers that there are none of, or stall the products.
    """
    segments = gl.zeros([static.block_k], gl.int32, vector_layout(_WARPS))
    if static.has_segments and mixed:
        _, batch, _ = place_of(info.tile, static)
        columns = block * static.block_k + gl.arange(0, static.block_k, vector_layout(_WARPS))
        ids = kv_segments + batch.to(gl.int64) * static.kv_len + columns
        segments = gl.load(ids, mask=columns < static.kv_len, other=-2)
    return segments


@gluon.jit
def _mask_logits(x, rows, columns, info, plan: gl.constexpr, static: gl.constexpr):
    """Replaces the logits that causal, window or the end of the keys hide by minus infinity."""
    if static.right is not None:
        limit = rows.position + static.right
        x = gl.where(columns[None, :] <= limit[:, None], x, float("-inf"))
    if static.left is not None:
        limit = rows.position - static.left
        x = gl.where(columns[None, :] >= limit[:, None], x, float("-inf"))
    if plan.has_lengths:
        x = gl.where((columns < info.length)[None, :], x, float("-inf"))
    elif static.ragged_k:
        x = gl.where((columns < static.kv_len)[None, :], x, float("-inf"))
    return x


@gluon.jit
def sum_in_threads(weights):
    """The sums [64, 4] of what each of the four threads of a row has of it; only the end of a tile adds them up."""
    columns: gl.constexpr = weights.shape[1]
    parts = weights.reshape([weights.shape[0], columns // 8, 4, 2])
    return gl.sum(gl.sum(parts, 3), 1)


@gluon.jit
def _drop_weights(weights, rows, block, layout: gl.constexpr, static: gl.constexpr):
    """Sets the weights that dropout drops to zero: ``dropout.py``.

    Tiles start at multiples of 16. Bit 3 of a lane is known at compile time, and that of an index is not: only so is
    the hash computed once for the four weights that share it.
    """
    # Not ``lane & ~8``: LLVM finds that equal for two lanes only where nothing else reads them.
    lane = gl.arange(0, static.block_k, gl.SliceLayout(0, layout))
    x = (block * static.block_k + (lane - (lane & 8))).to(gl.uint32) * 0x27D4EB2F
    x ^= x >> 16
    x = rows.random[:, None] ^ x[None, :]
    x *= 0x7FEB352D
    x ^= x >> 15
    row = gl.arange(0, _ROWS, gl.SliceLayout(1, layout))
    row_factor = gl.where((row & 8) != 0, ROW_FACTOR, 1).to(gl.uint32)
    column_factor = gl.where((lane & 8) != 0, COLUMN_FACTOR, 1).to(gl.uint32) * FACTOR
    bits = x * (row_factor[:, None] * column_factor[None, :])
    # By hand: LLVM moves a selection behind the rounding to 16 bits, and ptxas then collects the conditions bit by bit
    # in registers. A step at head dim 64 takes 1017 instructions with it and 709 without (sm_90, 128 keys).
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; setp.hs.u32 p, $2, $3; selp.f32 $0, $1, 0f00000000, p; }",
        "=f,f,r,r",
        [weights, bits, gl.full_like(bits, static.keep_threshold)],
        dtype=gl.float32,
        is_pure=True,
        pack=1,
    )


@gluon.jit
def softmax_step(
    product,
    state,
    rows,
    block,
    info,
    ids,
    edges,
    EDGES: gl.constexpr,
    layout: gl.constexpr,
    plan: gl.constexpr,
    static: gl.constexpr,
):
    """One step of the online softmax (arXiv 2205.14135) in base 2, over tile ``block`` of the keys.

    ``edges`` are the results of ``crosses_edge`` and ``mixes_segments``; ``ids`` holds the segments of the keys in
    shared memory.

    Returns:
      The weights [64, block_k], the maximum [64] and the denominator [64, 4] with them, and what the sums before are
      multiplied with [64].
    """
    maximum, total = state
    edge, mixed = edges
    x = squash(product, plan, static)
    columns = block * static.block_k + gl.arange(0, static.block_k, gl.SliceLayout(0, layout))
    if EDGES != "none" and edge:
        x = _mask_logits(x, rows, columns, info, plan, static)
    if static.has_segments and mixed:
        segments = ids.load(columns.type.layout)
        x = gl.where(rows.segment[:, None] == segments[None, :], x, float("-inf"))
    tile_maximum = gl.max(x, 1) * plan.late_scale
    if plan.keeps_maximum:
        new_maximum = gl.where(tile_maximum > maximum + _SLACK, tile_maximum, maximum)
    else:
        new_maximum = gl.maximum(maximum, tile_maximum)
    shift = new_maximum
    if EDGES != "none" or static.has_segments:
        # A row that has seen nothing yet.
        shift = gl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    weights = gl.exp2(x * plan.late_scale - shift[:, None])
    correction = gl.exp2(maximum - shift)
    parts = sum_in_threads(weights)
    factor = gl.convert_layout(correction, gl.SliceLayout(1, parts.type.layout))
    total = total * factor[:, None] + parts
    if static.keep_threshold is not None:
        weights = _drop_weights(weights, rows, block, layout, static)
    return weights, (new_maximum, total), correction
