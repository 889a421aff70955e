"""Device code of the partition that widens codes: four warps between the one that copies and those that multiply.

Codes come by descriptor into a slot of their own. They pass through registers, where each becomes a 16-bit number
exactly, into a slot of keys or values: float16, or the queries' bfloat16 where weights are multiplied with scales of
tokens, for which float16 has too few exponents. The groups that multiply apply scales. Those of tokens are brought
here, as they do not lie beside their codes.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from attn_tune.kernels.lang.gluon.device import vector_layout
from attn_tune.kernels.ragged_paged.triton_hopper.config import WARPS
from attn_tune.kernels.ragged_paged.triton_hopper.steps import slot_of
from attn_tune.kernels.ragged_paged.triton_hopper.tiles import receive_tile

_WARPS = gl.constexpr(WARPS)
# Codes that a thread reads at once: 16 bytes.
_CODES = gl.constexpr(16)
# Each takes four codes, $2, to two pairs of 16-bit numbers. Float16 holds every float8; bfloat16 is reached by float32.
_FLOAT8_TO_FLOAT16 = gl.constexpr(
    "{ .reg .b16 low, high; mov.b32 {low, high}, $2; cvt.rn.f16x2.e4m3x2 $0, low; cvt.rn.f16x2.e4m3x2 $1, high; }"
)
_FLOAT8_TO_BFLOAT16 = gl.constexpr(
    "{ .reg .b16 low, high, a, b; .reg .b32 t; .reg .f32 x, y; mov.b32 {low, high}, $2;"
    " cvt.rn.f16x2.e4m3x2 t, low; mov.b32 {a, b}, t; cvt.f32.f16 x, a; cvt.f32.f16 y, b; cvt.rn.bf16x2.f32 $0, y, x;"
    " cvt.rn.f16x2.e4m3x2 t, high; mov.b32 {a, b}, t; cvt.f32.f16 x, a; cvt.f32.f16 y, b; cvt.rn.bf16x2.f32 $1, y, x; }"
)
# The code plus 128 in the low bits of 1024.0 is 1152 more than the code.
_INT8_TO_FLOAT16 = gl.constexpr(
    "{ .reg .b32 t, low, high, bias; xor.b32 t, $2, 0x80808080; prmt.b32 low, t, 0x64646464, 0x4140;"
    " prmt.b32 high, t, 0x64646464, 0x4342; mov.b32 bias, 0x64806480;"
    " sub.f16x2 $0, low, bias; sub.f16x2 $1, high, bias; }"
)
# The seven low bits of the code in those of 128.0, less 128 or, with the code's sign in the exponent's last bit, 256.
_INT8_TO_BFLOAT16 = gl.constexpr(
    "{ .reg .b32 low, high, x, y; prmt.b32 low, $2, 0x43434343, 0x4140; prmt.b32 high, $2, 0x43434343, 0x4342;"
    " and.b32 x, low, 0xff7fff7f; and.b32 y, low, 0xff80ff80; sub.rn.bf16x2 $0, x, y;"
    " and.b32 x, high, 0xff7fff7f; and.b32 y, high, 0xff80ff80; sub.rn.bf16x2 $1, x, y; }"
)


@gluon.constexpr_function
def _instructions(code, dtype):
    """The assembly that takes codes to ``dtype``."""
    if code == gl.int8:
        return _INT8_TO_FLOAT16 if dtype == gl.float16 else _INT8_TO_BFLOAT16
    return _FLOAT8_TO_FLOAT16 if dtype == gl.float16 else _FLOAT8_TO_BFLOAT16


@gluon.constexpr_function
def _codes_layout(width):
    """Threads of a warp side by side on rows of codes, 16 bytes each."""
    lanes = width // _CODES.value
    return gl.BlockedLayout([1, _CODES.value], [32 // lanes, lanes], [_WARPS.value, 1], [1, 0])


@gluon.jit
def widen_tiles(pointers, buffers, barriers, plan: gl.constexpr):
    """Widens the tiles of keys and values that the copying warp brings, in its order."""
    count = 0
    turn = 0
    info = receive_tile(turn, buffers, barriers)
    while info.head >= 0:
        for j in range(info.stop - info.begin):
            _widen_tile(pointers, info, info.stop - 1 - j, count, buffers, barriers, plan)
            count += 1
        turn += 1
        info = receive_tile(turn, buffers, barriers)


@gluon.jit
def _widen_tile(pointers, info, block, count, buffers, barriers, plan: gl.constexpr):
    """Waits for codes of keys and a free slot, widens them, and then does so with the values of tile ``block``."""
    first = block * plan.block_k
    if plan.kv_scale == "token":
        # Before the waits, which hide how long these loads take.
        k_scales, v_scales = _load_scales(pointers, info, first, plan)
    slot, phase = slot_of(count, plan)
    mbarrier.wait(barriers.k_codes_full.index(0), count & 1)
    mbarrier.wait(barriers.k_empty.index(slot), phase ^ 1)
    _widen_panels(buffers.k_codes, buffers.k_panels, slot, info, first, False, plan.k_panels, plan.k_panel, plan)
    if plan.kv_scale == "token":
        buffers.k_scales.index(slot).store(k_scales)
    _pass_on(barriers.k_codes_empty.index(0), barriers.k_full.index(slot))
    mbarrier.wait(barriers.v_codes_full.index(0), count & 1)
    mbarrier.wait(barriers.v_empty.index(slot), phase ^ 1)
    if (first < info.lowest) | (first + plan.block_k > info.length):
        _widen_panels(buffers.v_codes, buffers.v_panels, slot, info, first, True, plan.v_panels, plan.v_panel, plan)
    else:
        _widen_panels(buffers.v_codes, buffers.v_panels, slot, info, first, False, plan.v_panels, plan.v_panel, plan)
    if plan.kv_scale == "token":
        buffers.v_scales.index(slot).store(v_scales)
    _pass_on(barriers.v_codes_empty.index(0), barriers.v_full.index(slot))


@gluon.jit
def _widen_panels(
    codes,
    panels,
    slot,
    info,
    first,
    DIRTY: gl.constexpr,
    PANELS: gl.constexpr,
    WIDTH: gl.constexpr,
    plan: gl.constexpr,
):
    """Widens one tile. ``DIRTY``: what no query of the sequence sees becomes zero, as a weight of zero hides no NaN."""
    layout: gl.constexpr = _codes_layout(WIDTH)
    asm: gl.constexpr = _instructions(codes.dtype, panels.dtype)
    key = first + gl.arange(0, plan.block_k, gl.SliceLayout(1, layout))
    is_seen = (key >= info.lowest) & (key < info.length)
    for panel in gl.static_range(PANELS):
        narrow = codes.index(panel).load(layout)
        wide = gl.inline_asm_elementwise(asm, "=r,=r,r", [narrow], dtype=panels.dtype, is_pure=True, pack=4)
        if DIRTY:
            wide = gl.where(is_seen[:, None], wide, 0.0)
        panels.index(slot * PANELS + panel).store(wide)


@gluon.jit
def _load_scales(pointers, info, first, plan: gl.constexpr):
    """The scales of keys and of values [block_k] of tokens from ``first`` on; zero where none is seen."""
    page_table, k_scale, v_scale = pointers
    key = first + gl.arange(0, plan.block_k, vector_layout(_WARPS))
    is_seen = (key >= info.lowest) & (key < info.length)
    page = info.sequence + key * 0
    token = key
    if plan.table_width > 0:
        entry = page_table + info.sequence.to(gl.int64) * plan.table_width + key // plan.page_size
        page = gl.load(entry, mask=is_seen, other=0)
        token = key % plan.page_size
    place = page.to(gl.int64) * plan.scale_pages + token.to(gl.int64) * plan.scale_slots + info.head * plan.scale_heads
    k_scales = gl.load(k_scale + place, mask=is_seen, other=0.0)
    return k_scales, gl.load(v_scale + place, mask=is_seen, other=0.0)


@gluon.jit
def _pass_on(empty, full):
    """Frees the slot of codes, and gives what was widened to the groups that multiply."""
    fence_async_shared()
    # Each arrives once all four warps are here.
    mbarrier.arrive(full)
    mbarrier.arrive(empty)
