"""Decays between the tokens of a chunk with a gate for each channel, as products of matrices that never overflow.

``sum over h of x[i, h] y[j, h] exp(G[i, h] - G[j, h])``, with ``G`` the sums of the gates, is no product of two
matrices of one scaling: ``exp(-G)`` overflows where a gate is strong. Relative to a token ``m`` between them it is one,
and both exponents, ``G[i] - G[m]`` and ``G[m] - G[j]``, are not positive. So a chunk is halved, and each half again.
At level ``n`` blocks of ``2 << n`` tokens are pairs of halves, ``m`` is the last token of the first half, and a token
has one factor: in a second half the decay from ``m`` to it, in a first half that from it to ``m``. Every pair of tokens
is met at one level, and no gate is left out or clamped.

Most gates are not that strong: within blocks of tokens whose sums are above ``WEAKEST``, ``exp(G[i])`` times
``exp(-G[j])`` is all there is to do in bfloat16, which has the exponents of float32, and the levels are those of larger
blocks alone. Other dtypes take all levels.

Exponents are sums over gates between two tokens, never differences of sums, which would have the rounding of strong
gates before both. They are products with matrices of ones and zeros: the gates are split into two bfloat16 numbers,
three where the working dtype is float32, and tensor cores add these exactly enough.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.chunks.static import load_tokens
from attn_tune.kernels.lang.triton.device.tile import LOG2E

# Sums of logarithms in base 2, whose factors and their inverses are normal numbers of bfloat16, times those of keys.
WEAKEST = tl.constexpr(-100.0)


@triton.jit
def load_logs(g, start, end, head, cols, static: tl.constexpr):
    """Base-2 logarithms of a chunk's gates ``[chunk, cols]`` as ``(high, middle, low)`` parts, and their sums."""
    logs = load_tokens(g, start, end, head, static.heads, static.width, cols, static.chunk, static.whole) * LOG2E
    return parts_of(logs), tl.sum(logs, 0)


@triton.jit
def parts_of(x):
    """Three bfloat16 arrays whose sum is a float32 array."""
    high = x.to(tl.bfloat16)
    rest = x - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    return high, middle, (rest - middle.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def summed(chosen, parts, static: tl.constexpr):
    """For each row of the matrix ``chosen`` the sum of the tokens that it marks, ``[chunk, cols]``."""
    high, middle, low = parts
    ones = chosen.to(tl.bfloat16)
    found = tl.dot(ones, high)
    found = tl.dot(ones, middle, found)
    if static.is_wide:
        found = tl.dot(ones, low, found)
    return found


@triton.jit
def tokens_within(level, static: tl.constexpr, BY_GATES: tl.constexpr = False):
    """The gates of each token's factor at a level, one row a token; at the level above the last, those to the end.

    Args:
      BY_GATES: rows are gates and columns tokens.
    """
    token, gate = indices(static, BY_GATES)
    is_second = (token >> level) % 2 == 1
    is_meant = (is_second & (gate <= token)) | ((token >> level) % 2 == 0) & (gate > token)
    return (token >> level == gate >> level) & is_meant


@triton.jit
def tokens_before(static: tl.constexpr, BY_GATES: tl.constexpr = False):
    """The gates from the start of the chunk up to each token, as ``tokens_within``."""
    token, gate = indices(static, BY_GATES)
    return gate <= token


@triton.jit
def indices(static: tl.constexpr, BY_GATES: tl.constexpr):
    """The tokens and the gates of a matrix of both."""
    row = tl.arange(0, static.chunk)[:, None]
    col = tl.arange(0, static.chunk)[None, :]
    if BY_GATES:
        return col, row
    else:
        return row, col


@triton.jit
def pairs_at(level, static: tl.constexpr):
    """The pairs of a token, by rows, and an earlier one that are met at a level."""
    row = tl.arange(0, static.chunk)[:, None]
    col = tl.arange(0, static.chunk)[None, :]
    return ((row >> level) ^ (col >> level) == 1) & (row > col)


@triton.jit
def pairs_across(level, static: tl.constexpr):
    """The pairs of ``pairs_at`` both ways round."""
    row = tl.arange(0, static.chunk)[:, None]
    col = tl.arange(0, static.chunk)[None, :]
    return (row >> level) ^ (col >> level) == 1


@triton.jit
def lowest_level(logs, dtype: tl.constexpr, static: tl.constexpr):
    """The level from which on decays need halving: that of the chunk, of blocks of 16, or 0."""
    if dtype == tl.bfloat16:
        chunk: tl.constexpr = static.chunk
        high = logs[0].to(tl.float32)
        of_blocks = tl.sum(tl.reshape(high, [chunk // 16, 16, high.shape[1]]), 1)
        whole = tl.min(tl.sum(of_blocks, 0), 0) > WEAKEST
        blocks = tl.min(tl.min(of_blocks, 1), 0) > WEAKEST
        return tl.where(whole, chunk.bit_length() - 1, tl.where(blocks, 4, 0))
    else:
        return 0


@triton.jit
def sums_near(before, lowest, logs, static: tl.constexpr):
    """Sums of the gates from the start of a block of ``1 << lowest`` tokens up to each token, half of ``WEAKEST`` less.

    They are between that and its opposite: queries and keys are multiplied with no larger factor than is needed.

    Args:
      before: those from the start of the chunk.
    """
    near = before
    if lowest < static.chunk.bit_length() - 1:
        near = summed(gates_near(lowest, static, False), logs, static)
    return near - WEAKEST / 2


@triton.jit
def gates_near(lowest, static: tl.constexpr, BY_GATES: tl.constexpr):
    """The gates of ``sums_near``, as ``tokens_before``."""
    token, gate = indices(static, BY_GATES)
    return (token >> lowest == gate >> lowest) & (gate <= token)


@triton.jit
def pairs_near(lowest, static: tl.constexpr):
    """The pairs of a token, by rows, and an earlier one of its block of ``1 << lowest``."""
    row = tl.arange(0, static.chunk)[:, None]
    col = tl.arange(0, static.chunk)[None, :]
    return (row >> lowest == col >> lowest) & (row > col)


@triton.jit
def decayed(x, logs):
    """Rows of a chunk times their decays, in their dtype."""
    return (x * tl.exp2(logs)).to(x.dtype)
