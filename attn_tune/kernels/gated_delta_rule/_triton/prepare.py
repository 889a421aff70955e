"""The launch that prepares chunks, each by itself: the inverse of its triangular system, and what makes outputs of it.

In a chunk that starts with the state ``S``, with ``D[i, j]`` the decay from token ``j`` to ``i`` and ``f[i]`` that from
the start to ``i``, the updates ``u`` solve (Gated Delta Networks, arXiv 2412.06464, section 3.3)::

    u[i] + beta[i] sum over j < i of D[i, j] (k[i] . k[j]) u[j] = beta[i] (v[i] - f[i] S^T k[i])

``solved`` is the inverse ``T`` of that system, and ``mixed`` is ``P T`` with ``P[i, j] = D[i, j] (q[i] . k[j])``.
With ``e`` the decay to the end of the chunk, ``carriers`` are ``T^T (e k)``: the state after the chunk is ``f[last] S``
and their product with the right side of the system, which a walk need not solve.
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

from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.chunks.config import Chunks
from attn_tune.kernels.lang.triton.chunks.decays import RESET, decays_between
from attn_tune.kernels.lang.triton.chunks.inverse import inverse
from attn_tune.kernels.lang.triton.chunks.static import chunk_of, load_numbers, load_tokens, static_of
from attn_tune.kernels.lang.triton.chunks.wide import split
from attn_tune.kernels.lang.triton.device.tile import LOG2E
from attn_tune.ops.gated_delta_rule.operands import Operands
from attn_tune.ops.gated_delta_rule.problem import Problem


class Prepared(NamedTuple):
    """All that is known of each chunk and head without the state.

    Attributes:
      solved: the inverse of the triangular system ``[slots, N, parts, chunk, chunk]``, in the working dtype. Blocks of
        16 above those of the diagonal are not written. The sum of two parts is twice as precise.
      carriers: the transposed inverse, times the decayed keys ``[slots, N, chunk, H]``, in the working dtype; without
        them one element.
      mixed: decayed products of queries and keys, times the inverse ``[slots, N, chunk, chunk]``, likewise.
      decays: float32 ``[slots, N, 2, chunk]``: the decay ``f`` from the start of the chunk, and ``e`` to its end. With
        whole squares ``[slots, N, 4, chunk]``: ``beta``, ``beta f``, ``f``, ``e``, the first two zero behind the end.
    """

    solved: jax.Array
    carriers: jax.Array
    mixed: jax.Array
    decays: jax.Array


def prepare(
    problem: Problem,
    config: Chunks,
    operands: Operands,
    parts: int = 1,
    *,
    carries: bool = False,
    squares: bool = False,
) -> Prepared:
    """Prepares every chunk of every value head.

    Args:
      parts: arrays of the working dtype, one or two, whose sum is an inverse.
      squares: write whole squares, zeros above the diagonal too, for copies by descriptor.
      carries: make ``carriers``. They save a walk of the backward a product on its way from state to state. A forward
        loses more here than it gains there: with them it took 1850 us, not 1614 (H200, 16/64 heads, 32768 tokens).
    """
    # Without columns of the state, so that walks of all kinds share one program.
    o, static = operands, static_of(problem, config, block_v=16)
    places = (static.slots, static.heads)
    square = (static.chunk, static.chunk)
    found = triton_call(
        prepare_kernel,
        o.q,
        o.k,
        o.g,
        o.beta,
        o.cu_seqlens,
        out_types=[
            jax.ShapeDtypeStruct((*places, parts, *square), o.q.dtype),
            jax.ShapeDtypeStruct((*places, static.chunk, static.width) if carries else (1,), o.q.dtype),
            jax.ShapeDtypeStruct((*places, *square), o.q.dtype),
            jax.ShapeDtypeStruct((*places, 4 if squares else 2, static.chunk), jnp.float32),
        ],
        grid=(static.slots * static.heads, 1, 1),
        constexprs={"PARTS": parts, "CARRIES": carries, "SQUARES": squares, "static": static},
        num_warps=config.prepare_warps,
        num_stages=1,
        maxnreg=config.prepare_registers,
        name="gated_delta_rule_prepare",
    )
    return Prepared(*found)


@triton.jit
def prepare_kernel(
    q,
    k,
    g,
    beta,
    cu_seqlens,
    solved,
    carriers,
    mixed,
    decays,
    PARTS: tl.constexpr,
    CARRIES: tl.constexpr,
    SQUARES: tl.constexpr,
    static: tl.constexpr,
):
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
        decay = decays_between(gates, resets, False, static)
        # Before the inverse, so that neither decays nor queries are held in registers meanwhile.
        p = tl.dot(q_tile, tl.trans(k_tile), input_precision=static.precision)
        p = (p * decay).to(k_tile.dtype)
        a = tl.dot(k_tile, tl.trans(k_tile), input_precision=static.precision)
        a = tl.where(row > col, a * decay, 0.0)
        # The last row of the decays between tokens.
        after = tl.sum(tl.where(row == static.chunk - 1, decay, 0.0), 0)
        place = tl.program_id(0).to(tl.int64)
        token = tl.arange(0, static.chunk)
        sums = tl.cumsum(gates, 0)
        passed = tl.cumsum(resets, 0)
        decays += place * ((4 if SQUARES else 2) * static.chunk)
        own = decays + token
        before = tl.exp2(tl.where(passed == 0, sums, float("-inf")))
        if not SQUARES:
            tl.store(own, before)
            tl.store(decays + static.chunk + token, after)
        if beta is not None:
            weights = load_numbers(beta, start, end, head, static.heads, static.chunk, 0.0)
            a *= weights[:, None]
        else:
            weights = (start + token < end).to(tl.float32)
        if SQUARES:
            tl.store(own, weights)
            tl.store(decays + static.chunk + token, weights * before)
            tl.store(decays + 2 * static.chunk + token, before)
            tl.store(decays + 3 * static.chunk + token, after)
        exact = inverse(a, static, "tf32" if k_tile.dtype == tl.bfloat16 else "tf32x3")
        x, rest = split(exact, k_tile.dtype)
        p = tl.dot(p, x, tl.dot(p, rest)) if PARTS == 2 else tl.dot(p, x, input_precision=static.precision)
        offsets = place * (static.chunk * static.chunk) + row * static.chunk + col
        is_lower = None if SQUARES else row // 16 >= col // 16
        tl.store(mixed + offsets, p.to(mixed.dtype.element_ty), mask=is_lower)
        solved += place * ((PARTS - 1) * static.chunk * static.chunk)
        tl.store(solved + offsets, x, mask=is_lower)
        if PARTS == 2:
            tl.store(solved + offsets + static.chunk * static.chunk, rest, mask=is_lower)
        if CARRIES:
            store_carriers(carriers, exact * after[:, None], k, start, end, key_head, place, static)


@triton.jit
def store_carriers(carriers, carrying, k, start, end, key_head, place, static: tl.constexpr):
    """Stores the product of the transposed ``carrying`` with the keys of a chunk.

    Keys are read once more, some channels at a time: all of them would take registers from what comes before.
    """
    columns: tl.constexpr = min(64, static.block_h)
    row = tl.arange(0, static.chunk)[:, None]
    for first in tl.range(0, static.block_h, columns):
        cols = first + tl.arange(0, columns)
        tile = load_tokens(k, start, end, key_head, static.key_heads, static.width, cols, static.chunk, static.whole)
        if static.is_wide:
            found = tl.dot(tl.trans(carrying), tile, input_precision=static.precision)
        else:
            high, low = split(carrying, tile.dtype)
            found = tl.dot(tl.trans(high), tile, tl.dot(tl.trans(low), tile))
        offsets = place * (static.chunk * static.width) + row * static.width + cols[None, :]
        tl.store(carriers + offsets, found.to(carriers.dtype.element_ty), mask=cols[None, :] < static.width)


@triton.jit
def log_gates(g, start, end, head, static: tl.constexpr):
    """Base-2 logarithms of a chunk's gates, and ones at resets, where the logarithm is zero."""
    if g is None:
        return tl.full([static.chunk], 0, tl.float32), tl.full([static.chunk], 0, tl.int32)
    else:
        gates = load_numbers(g, start, end, head, static.heads, static.chunk, 0.0)
        return tl.where(gates < RESET, 0.0, gates * LOG2E), (gates < RESET).to(tl.int32)
