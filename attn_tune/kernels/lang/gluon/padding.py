"""Device code that zeroes the padding at the end of a sequence in shared memory.

Copies by descriptor bring whole tiles, and a weight of zero does not hide what is not a number.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from attn_tune.kernels.lang.gluon.device import vector_layout
from attn_tune.kernels.lang.gluon.names import synchronize, viewed

# Columns of 16 bits that lie side by side, and rows after which their order repeats.
_PANEL = gl.constexpr(64)
_REPEAT = gl.constexpr(8)


@gluon.jit
def zero_rows(memory, slot, first, WARPS: gl.constexpr):
    """Zeroes rows ``first`` and on of one slot of ``memory`` [slots, 1, rows, columns] of 16 bits, for one partition.

    Several partitions may do it at once, each before it reads the slot: rows that count are not written.
    """
    SLOTS: gl.constexpr = memory.shape[0]
    ROWS: gl.constexpr = memory.shape[2]
    PANELS: gl.constexpr = memory.shape[3] // _PANEL
    # The order of the columns within a row does not matter: all of them become zero.
    COUNT: gl.constexpr = SLOTS * PANELS * ROWS
    single = viewed(memory, [COUNT, _PANEL], gl.SwizzledSharedLayout(1, 1, 1, order=[0]))
    several = viewed(memory, [COUNT // _REPEAT, _REPEAT, _PANEL], gl.SwizzledSharedLayout(1, 1, 1, order=[1, 0]))
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [WARPS, 1], [1, 0])
    whole = (first + _REPEAT - 1) // _REPEAT
    for panel in gl.static_range(PANELS):
        base = (slot * PANELS + panel) * ROWS
        for row in range(first, whole * _REPEAT):
            single.index(base + row).store(gl.zeros([_PANEL], memory.dtype, vector_layout(WARPS)))
        for group in range(whole, ROWS // _REPEAT):
            several.index(base // _REPEAT + group).store(gl.zeros([_REPEAT, _PANEL], memory.dtype, layout))
    fence_async_shared()
    synchronize()
