"""Device code of the schedule: which blocks of keys a program has, from the lengths of the sequences.

The visible blocks of all sequences, one sequence after the other, are one line. Each program has an equal piece of it,
so that programs of one key head differ by at most one block, whatever the lengths. The programs of all key heads have
the same pieces and run side by side: in most layouts their keys are neighbours in memory. The idea is that of stream-K
(arXiv 2301.03598), of a line that only the device knows.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl


@triton.jit
def clamped(length, static: tl.constexpr):
    """Lengths within what the cache holds."""
    return tl.minimum(tl.maximum(length, 0), static.capacity)


@triton.jit
def first_key(length, static: tl.constexpr):
    """The first key that a query of a sequence sees."""
    first = length * 0
    if static.left is not None:
        first = tl.maximum(length - static.q_len - static.left, 0)
    return first


@triton.jit
def blocks_of(length, static: tl.constexpr):
    """The blocks of a sequence that hold visible keys; none of an empty one."""
    last = (length + static.block_k - 1) // static.block_k
    return last - first_key(length, static) // static.block_k


@triton.jit
def all_blocks(kv_lens, static: tl.constexpr):
    """The blocks of every sequence, ``[block_b]``."""
    index = tl.arange(0, static.block_b)
    length = tl.load(kv_lens + index, mask=index < static.batch, other=0)
    return blocks_of(clamped(length, static), static)


@triton.jit
def piece(blocks, static: tl.constexpr):
    """The blocks of the line that each program has, the last ones fewer."""
    total = tl.sum(blocks, 0)
    equal = (total + static.num_programs - 1) // static.num_programs
    return total, tl.maximum(equal, static.least_blocks)
