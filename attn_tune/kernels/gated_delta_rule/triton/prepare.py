"""The launch that prepares chunks, each by itself: the inverse of its triangular system, and what makes outputs of it.

In a chunk that starts with the state ``S``, with ``D[i, j]`` the decay from token ``j`` to ``i`` and ``f[i]`` that from
the start to ``i``, the updates ``u`` solve (Gated Delta Networks, arXiv 2412.06464, section 3.3)::

    u[i] + beta[i] sum over j < i of D[i, j] (k[i] . k[j]) u[j] = beta[i] (v[i] - f[i] S^T k[i])

``solved`` is the inverse ``T`` of that system, and ``mixed`` is ``P T`` with ``P[i, j] = D[i, j] (q[i] . k[j])``.
All decays are exponentials of differences that are not positive. A gate below ``RESET`` forgets everything: the tokens
before it have decayed to exactly zero.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from typing import NamedTuple

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.gated_delta_rule.triton.config import Chunks
from attn_tune.kernels.gated_delta_rule.triton.static import chunk_of, load_numbers, load_tokens, static_of
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.device.tile import LOG2E
from attn_tune.ops.gated_delta_rule.operands import Operands
from attn_tune.ops.gated_delta_rule.problem import Problem

# The factor of a lower gate is no normal number of float32, and exponentials of GPUs make it zero.
RESET = tl.constexpr(-87.0)


class Prepared(NamedTuple):
    """All that is known of each chunk and head without the state.

    Attributes:
      solved: the inverse of the triangular system ``[slots, N, chunk, chunk]``, in the working dtype. Blocks of 16
        above those of the diagonal are not written.
      mixed: decayed products of queries and keys, times the inverse, likewise.
      decays: float32 ``[slots, N, 2, chunk]``: the decay from the start of the chunk, and to its end.
    """

    solved: jax.Array
    mixed: jax.Array
    decays: jax.Array


def prepare(problem: Problem, config: Chunks, operands: Operands) -> Prepared:
    """Prepares every chunk of every value head."""
    # Without columns of the state, so that walks of all kinds share one program.
    o, static = operands, static_of(problem, config, block_v=16)
    places = (static.slots, static.heads)
    matrices = jax.ShapeDtypeStruct((*places, static.chunk, static.chunk), o.q.dtype)
    found = triton_call(
        prepare_kernel,
        o.q,
        o.k,
        o.g,
        o.beta,
        o.cu_seqlens,
        out_types=[matrices, matrices, jax.ShapeDtypeStruct((*places, 2, static.chunk), jnp.float32)],
        grid=(static.slots * static.heads, 1, 1),
        constexprs={"static": static},
        num_warps=config.prepare_warps,
        num_stages=1,
        maxnreg=config.prepare_registers,
        name="gated_delta_rule_prepare",
    )
    return Prepared(*found)


@triton.jit
def prepare_kernel(q, k, g, beta, cu_seqlens, solved, mixed, decays, static: tl.constexpr):
    """One program per chunk and value head; heads that share a key head are neighbours."""
    head = tl.program_id(0) % static.heads
    slot = tl.program_id(0) // static.heads
    sequence, start, end = chunk_of(cu_seqlens, slot, static)
    if (sequence >= 0) & (start < end):
        cols = tl.arange(0, static.block_h)
        key_head = head // static.group
        k_tile = load_tokens(k, start, end, key_head, static.key_heads, static.width, cols, static.chunk, static.whole)
        q_tile = load_tokens(q, start, end, key_head, static.key_heads, static.width, cols, static.chunk, static.whole)
        gates, resets = log_gates(g, start, end, head, static)
        row = tl.arange(0, static.chunk)[:, None]
        col = tl.arange(0, static.chunk)[None, :]
        decay = tl.where(row >= col, decays_between(gates, resets, static), 0.0)
        # Before the inverse, so that neither decays nor queries are held in registers meanwhile.
        p = tl.dot(q_tile, tl.trans(k_tile), input_precision=static.precision)
        p = (p * decay).to(k_tile.dtype)
        a = tl.dot(k_tile, tl.trans(k_tile), input_precision=static.precision)
        a = tl.where(row > col, a * decay, 0.0)
        # The last row of the decays between tokens.
        after = tl.sum(tl.where(row == static.chunk - 1, decay, 0.0), 0)
        if beta is not None:
            a *= load_numbers(beta, start, end, head, static.heads, static.chunk, 0.0)[:, None]
        x = inverse(a, static).to(k_tile.dtype)
        p = tl.dot(p, x, input_precision=static.precision)

        place = tl.program_id(0).to(tl.int64)
        offsets = place * (static.chunk * static.chunk) + row * static.chunk + col
        is_lower = row // 16 >= col // 16
        tl.store(solved + offsets, x, mask=is_lower)
        tl.store(mixed + offsets, p.to(mixed.dtype.element_ty), mask=is_lower)
        token = tl.arange(0, static.chunk)
        sums = tl.cumsum(gates, 0)
        passed = tl.cumsum(resets, 0)
        decays += place * (2 * static.chunk)
        tl.store(decays + token, tl.exp2(tl.where(passed == 0, sums, float("-inf"))))
        tl.store(decays + static.chunk + token, after)


@triton.jit
def log_gates(g, start, end, head, static: tl.constexpr):
    """Base-2 logarithms of a chunk's gates, and ones at resets, where the logarithm is zero."""
    if g is None:
        return tl.full([static.chunk], 0, tl.float32), tl.full([static.chunk], 0, tl.int32)
    else:
        gates = load_numbers(g, start, end, head, static.heads, static.chunk, 0.0)
        return tl.where(gates < RESET, 0.0, gates * LOG2E), (gates < RESET).to(tl.int32)


@triton.jit
def decays_between(gates, resets, static: tl.constexpr):
    """The decay from each token to each later one, row by row, and one on the diagonal; not to be read above it."""
    passed = tl.cumsum(resets, 0)
    if static.is_wide:
        # The difference of two sums has the rounding of strong gates before both.
        row = tl.arange(0, static.chunk)[:, None]
        col = tl.arange(0, static.chunk)[None, :]
        logs = tl.cumsum(tl.where(row > col, gates[:, None], 0.0), 0)
    else:
        sums = tl.cumsum(gates, 0)
        logs = tl.minimum(sums[:, None] - sums[None, :], 0.0)
    return tl.exp2(tl.where(passed[:, None] == passed[None, :], logs, float("-inf")))


@triton.jit
def inverse(a, static: tl.constexpr):
    """The inverse of I + a, with a strictly lower triangular, from blocks of one row by doubling.

    It grows no larger than the result. A power series would: of equal keys its terms are binomials.
    """
    blocks: tl.constexpr = static.chunk // 16
    row = tl.arange(0, 16)[None, :, None]
    col = tl.arange(0, 16)[None, None, :]
    small = diagonal(a, blocks, 16, 0)
    x = tl.where(row == col, 1.0, 0.0) - tl.where(row // 2 == col // 2, small, 0.0)
    x = doubled(x, small, 2, blocks, static)
    x = doubled(x, small, 4, blocks, static)
    x = doubled(x, small, 8, blocks, static)
    if blocks >= 2:
        x = joined(x, a, blocks // 2, 16, static)
    if blocks >= 4:
        x = joined(x, a, blocks // 4, 32, static)
    return tl.reshape(x, [static.chunk, static.chunk])


@triton.jit
def doubled(x, a, half: tl.constexpr, blocks: tl.constexpr, static: tl.constexpr):
    """In each block of 16 the inverses of blocks of ``2 half`` rows, from those of ``half`` rows."""
    row = tl.arange(0, 16)[None, :, None]
    col = tl.arange(0, 16)[None, None, :]
    below = tl.where((row // (2 * half) == col // (2 * half)) & (row // half != col // half), a, 0.0)
    return x - times(x, times(below, x, blocks, static), blocks, static)


@triton.jit
def joined(x, a, pairs: tl.constexpr, half: tl.constexpr, static: tl.constexpr):
    """The inverses ``[pairs, 2 half, 2 half]`` from those of their halves ``[2 pairs, half, half]``."""
    first, second = halves(x, pairs, half)
    _, below = halves(diagonal(a, 2 * pairs, half, 1), pairs, half)
    below = -times(second, times(below, first, pairs, static), pairs, static)
    top = tl.permute(tl.join(first, tl.zeros_like(first)), (0, 1, 3, 2))
    bottom = tl.permute(tl.join(below, second), (0, 1, 3, 2))
    top = tl.reshape(top, [pairs, half, 2 * half])
    bottom = tl.reshape(bottom, [pairs, half, 2 * half])
    return tl.reshape(tl.permute(tl.join(top, bottom), (0, 3, 1, 2)), [pairs, 2 * half, 2 * half])


@triton.jit
def halves(x, pairs: tl.constexpr, half: tl.constexpr):
    """The blocks of even and of odd number."""
    return tl.split(tl.permute(tl.reshape(x, [pairs, 2, half, half]), (0, 2, 3, 1)))


@triton.jit
def diagonal(a, blocks: tl.constexpr, size: tl.constexpr, below: tl.constexpr):
    """The blocks ``[blocks, size, size]`` on the diagonal of a matrix, or those ``below`` it in the block's row."""
    row = tl.arange(0, blocks)[:, None, None, None]
    col = tl.arange(0, blocks)[None, None, :, None]
    return tl.sum(tl.where(row == col + below, tl.reshape(a, [blocks, size, blocks, size]), 0.0), 2)


@triton.jit
def times(a, b, blocks: tl.constexpr, static: tl.constexpr):
    """The products of blocks in float32, in one pass of tf32 where the result is rounded to 16 bits."""
    if blocks == 1:
        size: tl.constexpr = a.shape[1]
        flat = tl.dot(tl.reshape(a, [size, size]), tl.reshape(b, [size, size]), input_precision=static.precision)
        return tl.reshape(flat, [1, size, size])
    else:
        return tl.dot(a, b, input_precision=static.precision)
