"""Device code: the steps over tiles of keys that a group of warps makes for its rows.

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

from attn_tune.kernels.flash_attention.triton_hopper.config import CONSUMERS, ROWS
from attn_tune.kernels.flash_attention.triton_hopper.logits import (
    ask_segments,
    crosses,
    mixes,
    sum_in_threads,
    weigh,
)

_ROWS = gl.constexpr(ROWS)
_CONSUMERS = gl.constexpr(CONSUMERS)


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
    """The slot of a step, and which of its two phases it is at. Without a sign these are a mask and a shift."""
    count = count.to(gl.uint32)
    return (count % plan.stages).to(gl.int32), (count // plan.stages & 1).to(gl.int32)


@gluon.jit
def take_queries(
    CONSUMER: gl.constexpr,
    turn,
    more,
    room,
    bars,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    """The queries of the tile of ``turn``: in registers, or their slot in shared memory. Without ``more`` none come."""
    slot = turn % plan.q_slots * _CONSUMERS + CONSUMER
    mbarrier.wait(bars.q_full.index(slot), turn // plan.q_slots & 1, pred=more)
    queries = slot
    if plan.q_in_registers:
        queries = room.q.index(slot).reshape([_ROWS, static.head_dim]).load(layouts.queries)
        mbarrier.arrive(bars.q_empty.index(slot))
    return queries


@gluon.jit
def begin(
    CONSUMER: gl.constexpr,
    queries,
    count,
    facts,
    rows,
    fixed,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    """``(weights, state)`` of the last tile of keys, with no product of a tile before to run beside."""
    kv_segments, room, bars = fixed
    slot, phase = slot_of(count, plan)
    block = facts.end - 1
    edge = crosses(block, facts, plan.last_keys)
    mixed = mixes(block, facts, static)
    segments = ask_segments(block, facts, mixed, kv_segments, static)
    mbarrier.wait(bars.k_full.index(slot), phase)
    _await_turn(CONSUMER, count, bars, plan)
    product = _multiply_keys(queries, slot, room, plan, static, layouts)
    _pass_turn(CONSUMER, bars, plan)
    _keep_segments(CONSUMER, segments, mixed, room, static)
    product = warpgroup_mma_wait(0, deps=[product])
    mbarrier.arrive(bars.k_empty.index(slot))
    weights, state, _ = weigh(
        product,
        new_state(rows, plan, static, layouts),
        rows,
        block,
        facts,
        room.ids.index(CONSUMER),
        (edge, mixed),
        plan.last_keys,
        layouts.logits,
        plan,
        static,
    )
    weights = gl.convert_layout(weights.to(room.k.dtype), layouts.weights)
    mbarrier.wait(bars.v_full.index(slot), phase)
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
      What ``weigh`` returns, after the sum of the values [64, H] of the steps before, not corrected.
    """
    queries, facts, rows = own
    kv_segments, room, bars = fixed
    acc, weights, state, count = carried
    slot, phase = slot_of(count, plan)
    last_slot, _ = slot_of(count - 1, plan)
    edge = crosses(block, facts, EDGES)
    mixed = mixes(block, facts, static)
    segments = ask_segments(block, facts, mixed, kv_segments, static)
    mbarrier.wait(bars.k_full.index(slot), phase, pred=more)
    _await_turn(CONSUMER, count, bars, plan)
    product = _multiply_keys(queries, slot, room, plan, static, layouts)
    acc = multiply_values(weights, room.v.index(last_slot), acc, static)
    _pass_turn(CONSUMER, bars, plan)
    _keep_segments(CONSUMER, segments, mixed, room, static)
    product = warpgroup_mma_wait(1, deps=[product])
    mbarrier.arrive(bars.k_empty.index(slot))
    ids = room.ids.index(CONSUMER)
    edges = (edge, mixed)
    new_weights, state, correction = weigh(
        product, state, rows, block, facts, ids, edges, EDGES, layouts.logits, plan, static
    )
    weights = gl.convert_layout(new_weights.to(room.k.dtype), layouts.weights)
    # These values are wanted by the next step. They are waited for here because no instruction is moved over a loop:
    # without one ptxas has the exponentials come after the product that they can run beside.
    mbarrier.wait(bars.v_full.index(slot), phase, pred=more)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(bars.v_empty.index(last_slot))
    return acc, weights, state, correction


@gluon.constexpr_function
def _unless_one(count):
    """PTX, and its constraints: so many products with factors, or a branch past them where the first flag is 0."""
    products = "".join(f"mul.f32 ${i}, ${i}, ${2 * count + i};" for i in range(count))
    asm = f"{{ .reg .pred p; setp.eq.s32 p, ${3 * count}, 0; @p bra.uni DONE; {products} DONE: }}"
    each = range(count)
    kinds = (
        ["=f" for _ in each] + [str(i) for i in each] + ["f" for _ in each] + ["r" for _ in each]
    )
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
        acc = gl.inline_asm_elementwise(
            PTX[0], PTX[1], [acc, factor, flag], dtype=gl.float32, is_pure=False, pack=32
        )
    else:
        acc = acc * factor
    return acc


@gluon.jit
def _keep_segments(CONSUMER: gl.constexpr, segments, mixed, room, static: gl.constexpr):
    if static.has_segments and mixed:
        room.ids.index(CONSUMER).store(segments)


@gluon.jit
def multiply_values(weights, v_slot, acc, static: gl.constexpr):
    """The weighted sum of one tile's values added to ``acc``, under way."""
    v_tile = v_slot.reshape([static.block_k, static.head_dim])
    return warpgroup_mma(weights, v_tile, acc, is_async=True)


@gluon.jit
def _multiply_keys(
    queries, slot, room, plan: gl.constexpr, static: gl.constexpr, layouts: gl.constexpr
):
    """q.k of one tile, under way."""
    q_tile = queries
    if not plan.q_in_registers:
        q_tile = room.q.index(queries).reshape([_ROWS, static.head_dim])
    k_tile = room.k.index(slot).reshape([static.block_k, static.head_dim])
    zeros = gl.zeros([_ROWS, static.block_k], gl.float32, layouts.logits)
    return warpgroup_mma(q_tile, k_tile.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def _await_turn(CONSUMER: gl.constexpr, count, bars, plan: gl.constexpr):
    """Both groups take equally many steps; the first waits for the other's step before, the second for the same one."""
    if plan.ping_pong:
        mbarrier.wait(bars.turn.index(CONSUMER), (count & 1) ^ (1 - CONSUMER))


@gluon.jit
def _pass_turn(CONSUMER: gl.constexpr, bars, plan: gl.constexpr):
    if plan.ping_pong:
        mbarrier.arrive(bars.turn.index(1 - CONSUMER))
