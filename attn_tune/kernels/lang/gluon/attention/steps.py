"""Device code of the steps over tiles of keys that a group of warps makes for its rows.

FlashAttention-3's pipeline within a group of warps (arXiv 2407.08608, section 3.2): the logits of one tile of keys are
computed while the weights of the one before are multiplied with their values, and the softmax of the first runs beside
the second product.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from attn_tune.kernels.lang.gluon.attention.config import CONSUMERS, ROWS, WARPS
from attn_tune.kernels.lang.gluon.attention.logits import (
    crosses_edge,
    load_key_segments,
    mixes_segments,
    softmax_step,
    sum_in_threads,
)
from attn_tune.kernels.lang.gluon.padding import zero_rows

_ROWS = gl.constexpr(ROWS)
_CONSUMERS = gl.constexpr(CONSUMERS)
_WARPS = gl.constexpr(WARPS)


@gluon.jit
def new_state(rows, plan: gl.constexpr, static: gl.constexpr, layouts: gl.constexpr):
    """Maximum [64] and denominator [64, 4], in parts, before any key was seen."""
    row_layout: gl.constexpr = gl.SliceLayout(1, layouts.logits)
    maximum = gl.full([_ROWS], float("-inf"), gl.float32, row_layout)
    total = sum_in_threads(gl.zeros([_ROWS, static.block_k], gl.float32, layouts.logits))
    if plan.has_sinks:
        # The sink is the first logit seen: it joins the sum once, whatever the tiles.
        maximum = gl.zeros([_ROWS], gl.float32, row_layout) + rows.sink
        total += gl.where(rows.sink == float("-inf"), 0.0, 0.25)
    return maximum, total


@gluon.jit
def slot_of(count, plan: gl.constexpr):
    """The slot of a step, and the phase of its barriers. Without a sign these are a mask and a shift."""
    count = count.to(gl.uint32)
    return (count % plan.stages).to(gl.int32), (count // plan.stages & 1).to(gl.int32)


@gluon.jit
def receive_queries(
    CONSUMER: gl.constexpr,
    turn,
    more,
    buffers,
    barriers,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    """Waits for the queries of the tile of ``turn``: in registers, or as their slot. Without ``more`` none come."""
    slot = turn % plan.q_slots * _CONSUMERS + CONSUMER
    mbarrier.wait(barriers.q_full.index(slot), turn // plan.q_slots & 1, pred=more)
    queries = slot
    if plan.q_in_registers:
        queries = buffers.q.index(slot).reshape([_ROWS, static.head_dim]).load(layouts.queries)
        mbarrier.arrive(barriers.q_empty.index(slot))
    return queries


@gluon.jit
def begin(
    CONSUMER: gl.constexpr,
    queries,
    count,
    info,
    rows,
    fixed,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    """``(weights, state)`` of the last tile of keys, with no product of a tile before to run beside."""
    kv_segments, buffers, barriers = fixed
    slot, phase = slot_of(count, plan)
    block = info.end - 1
    edge = crosses_edge(block, info, plan.last_keys)
    mixed = mixes_segments(block, info, static)
    segments = load_key_segments(block, info, mixed, kv_segments, static)
    mbarrier.wait(barriers.k_full.index(slot), phase)
    _await_turn(CONSUMER, count, barriers, plan)
    product = _multiply_keys(queries, slot, buffers, plan, static, layouts)
    _pass_turn(CONSUMER, barriers, plan)
    _store_key_segments(CONSUMER, segments, mixed, buffers, static)
    product = warpgroup_mma_wait(0, deps=[product])
    mbarrier.arrive(barriers.k_empty.index(slot))
    weights, state, _ = softmax_step(
        product,
        new_state(rows, plan, static, layouts),
        rows,
        block,
        info,
        buffers.ids.index(CONSUMER),
        (edge, mixed),
        plan.last_keys,
        layouts.logits,
        plan,
        static,
    )
    weights = gl.convert_layout(weights.to(buffers.k.dtype), layouts.weights)
    mbarrier.wait(barriers.v_full.index(slot), phase)
    _zero_padding(block, slot, info, buffers, plan.last_keys, plan, static)
    return weights, state


@gluon.jit
def walk(
    CONSUMER: gl.constexpr,
    carried,
    todo,
    stop,
    own,
    fixed,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    """The steps of the tiles of keys from ``todo - 1`` down to ``stop``."""
    for j in range(todo - stop):
        acc, weights, state, count = carried
        acc, weights, state, correction = step(
            CONSUMER,
            carried,
            todo - 1 - j,
            own,
            fixed,
            True,
            plan.other_keys,
            plan,
            static,
            layouts,
        )
        acc = _corrected(acc, correction, plan, layouts)
        carried = (acc, weights, state, count + 1)
    return carried


@gluon.jit
def step(
    CONSUMER: gl.constexpr,
    carried,
    block,
    own,
    fixed,
    more,
    EDGES: gl.constexpr,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    """The logits of tile ``block`` of the keys, and the product that the step before left to do.

    ``own``: which queries are multiplied, and what is known of their tile and rows. Without ``more`` no keys come.

    Returns:
      What ``softmax_step`` returns, after the sum of the values [64, H] of the steps before, not corrected.
    """
    queries, info, rows = own
    kv_segments, buffers, barriers = fixed
    acc, weights, state, count = carried
    slot, phase = slot_of(count, plan)
    last_slot, _ = slot_of(count - 1, plan)
    edge = crosses_edge(block, info, EDGES)
    mixed = mixes_segments(block, info, static)
    segments = load_key_segments(block, info, mixed, kv_segments, static)
    mbarrier.wait(barriers.k_full.index(slot), phase, pred=more)
    _await_turn(CONSUMER, count, barriers, plan)
    product = _multiply_keys(queries, slot, buffers, plan, static, layouts)
    acc = multiply_values(weights, buffers.v.index(last_slot), acc, static)
    _pass_turn(CONSUMER, barriers, plan)
    _store_key_segments(CONSUMER, segments, mixed, buffers, static)
    product = warpgroup_mma_wait(1, deps=[product])
    mbarrier.arrive(barriers.k_empty.index(slot))
    ids = buffers.ids.index(CONSUMER)
    edges = (edge, mixed)
    new_weights, state, correction = softmax_step(
        product, state, rows, block, info, ids, edges, EDGES, layouts.logits, plan, static
    )
    weights = gl.convert_layout(new_weights.to(buffers.k.dtype), layouts.weights)
    # These values are wanted by the next step. They are waited for here because no instruction is moved over a loop:
    # without one ptxas has the exponentials come after the product that they can run beside.
    mbarrier.wait(barriers.v_full.index(slot), phase, pred=more)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(barriers.v_empty.index(last_slot))
    _zero_padding(block, slot, info, buffers, EDGES, plan, static)
    return acc, weights, state, correction


@gluon.jit
def _zero_padding(block, slot, info, buffers, EDGES: gl.constexpr, plan: gl.constexpr, static: gl.constexpr):
    """Zeroes the values of tile ``block`` behind the length of the sequence."""
    if plan.has_lengths and EDGES != "none":
        first = info.length - block * static.block_k
        if first < static.block_k:
            zero_rows(buffers.v, slot, gl.maximum(first, 0), _WARPS)


@gluon.constexpr_function
def _unless_one(count):
    """PTX and its constraints: ``count`` products with factors, or a branch past them where the first flag is 0."""
    products = "".join(f"mul.f32 ${i}, ${i}, ${2 * count + i};" for i in range(count))
    asm = f"{{ .reg .pred p; setp.eq.s32 p, ${3 * count}, 0; @p bra.uni DONE; {products} DONE: }}"
    each = range(count)
    kinds = ["=f" for _ in each] + [str(i) for i in each] + ["f" for _ in each] + ["r" for _ in each]
    return asm, ",".join(kinds)


@gluon.jit
def _corrected(acc, correction, plan: gl.constexpr, layouts: gl.constexpr):
    """``acc * correction``. Where maxima are kept, a warp none of whose rows has another one goes past it.

    FlashAttention-4 has that for Blackwell: there, too, maxima that move by less than 2**8 are kept.
    """
    row: gl.constexpr = gl.SliceLayout(1, layouts.out)
    factor = gl.convert_layout(correction, row)[:, None]
    if plan.keeps_maximum:
        # A thread has two rows. Both get the flag of the warp, so that the first flag of a pack holds for all of it.
        flag = gl.inline_asm_elementwise(
            "{ .reg .pred p; setp.neu.f32 p, $2, 0f3F800000; setp.neu.or.f32 p, $3, 0f3F800000, p;"
            " vote.sync.any.pred p, p, 0xffffffff; selp.b32 $0, 1, 0, p; selp.b32 $1, 1, 0, p; }",
            "=r,=r,f,f",
            [correction],
            dtype=gl.int32,
            is_pure=False,
            pack=2,
        )
        flag = gl.convert_layout(flag, row)[:, None]
        PTX: gl.constexpr = _unless_one(32)
        acc = gl.inline_asm_elementwise(PTX[0], PTX[1], [acc, factor, flag], dtype=gl.float32, is_pure=False, pack=32)
    else:
        acc = acc * factor
    return acc


@gluon.jit
def _store_key_segments(CONSUMER: gl.constexpr, segments, mixed, buffers, static: gl.constexpr):
    if static.has_segments and mixed:
        buffers.ids.index(CONSUMER).store(segments)


@gluon.jit
def multiply_values(weights, v_slot, acc, static: gl.constexpr):
    """Starts adding the weighted sum of one tile's values to ``acc``."""
    v_tile = v_slot.reshape([static.block_k, static.head_dim])
    return warpgroup_mma(weights, v_tile, acc, is_async=True)


@gluon.jit
def _multiply_keys(queries, slot, buffers, plan: gl.constexpr, static: gl.constexpr, layouts: gl.constexpr):
    """Starts the product q.k of one tile."""
    q_tile = queries
    if not plan.q_in_registers:
        q_tile = buffers.q.index(queries).reshape([_ROWS, static.head_dim])
    k_tile = buffers.k.index(slot).reshape([static.block_k, static.head_dim])
    zeros = gl.zeros([_ROWS, static.block_k], gl.float32, layouts.logits)
    return warpgroup_mma(q_tile, k_tile.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def _await_turn(CONSUMER: gl.constexpr, count, barriers, plan: gl.constexpr):
    """Both groups take equally many steps; the first waits for the other's step before, the second for the same one."""
    if plan.ping_pong:
        mbarrier.wait(barriers.turn.index(CONSUMER), (count & 1) ^ (1 - CONSUMER))


@gluon.jit
def _pass_turn(CONSUMER: gl.constexpr, barriers, plan: gl.constexpr):
    if plan.ping_pong:
        mbarrier.arrive(barriers.turn.index(1 - CONSUMER))
