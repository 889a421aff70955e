"""The launch that finds the decays of each chunk with one gate a token, before walks that would else each find them.

Sums over tokens are exchanged between threads, which walks wait for; and every tile of columns walks all chunks.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.chunks.decays import decays_between
from attn_tune.kernels.lang.triton.chunks.static import chunk_of
from attn_tune.kernels.lang.triton.linear.static import Static, decays_from_start, decays_to_end, log_gates

# Numbers of a token: the decays from the start of its chunk and to the end of it, the sum of the base-2 logarithms of
# gates up to it, and how many resets there are up to it. The last two stand twice, as a thread reads them by rows and
# by columns: one copy would be exchanged between threads.
KINDS = tl.constexpr(6)


def chunk_decays(operands: Any, static: Static) -> jax.Array | None:
    """Those numbers of each chunk, float32 ``[slots, N, 6, chunk]``; None without gates."""
    o = operands
    if static.gate == "none":
        return None
    # Without columns of the state, so that walks of all kinds share one program.
    static = dataclasses.replace(static, block_v=16, tiles=1, segments=1, turned=False)
    (decays,) = triton_call(
        decays_kernel,
        o.g,
        o.cu_seqlens,
        out_types=[jax.ShapeDtypeStruct((static.slots, static.heads, KINDS.value, static.chunk), jnp.float32)],
        grid=(static.slots * static.heads, 1, 1),
        constexprs={"static": static},
        num_warps=1,
        num_stages=1,
        name="linear_attention_decays",
    )
    return decays


@triton.jit
def decays_kernel(g, cu_seqlens, decays, static: tl.constexpr):
    """One program per chunk and value head."""
    head = tl.program_id(0) % static.heads
    slot = tl.program_id(0) // static.heads
    sequence, start, end = chunk_of(cu_seqlens, slot, static)
    if (sequence >= 0) & (start < end):
        gates, resets = log_gates(g, start, end, head, static)
        after, _ = decays_to_end(gates, resets, static)
        sums = tl.cumsum(gates, 0)
        passed = tl.cumsum(resets, 0).to(tl.float32)
        base = decays + tl.program_id(0).to(tl.int64) * (KINDS * static.chunk) + tl.arange(0, static.chunk)
        tl.store(base, decays_from_start(gates, resets))
        tl.store(base + static.chunk, after)
        tl.store(base + 2 * static.chunk, sums)
        tl.store(base + 3 * static.chunk, passed)
        tl.store(base + 4 * static.chunk, sums)
        tl.store(base + 5 * static.chunk, passed)


@triton.jit
def load_decays(decays, slot, head, which: tl.constexpr, static: tl.constexpr):
    """One of the numbers of each token of a chunk."""
    base = decays + (slot * static.heads + head).to(tl.int64) * (KINDS * static.chunk)
    return tl.load(base + which * static.chunk + tl.arange(0, static.chunk))


@triton.jit
def decay_of_chunk(decays, slot, head, static: tl.constexpr):
    """The decay of a whole chunk."""
    base = decays + (slot * static.heads + head).to(tl.int64) * (KINDS * static.chunk)
    return tl.load(base + static.chunk - 1)


@triton.jit
def pair_decays(g, decays, start, end, slot, head, static: tl.constexpr):
    """The decay from each token of a chunk (columns) to each later one (rows), as of ``decays_between``."""
    if static.is_wide:
        gates, resets = log_gates(g, start, end, head, static)
        return decays_between(gates, resets, False, static)
    else:
        row = tl.arange(0, static.chunk)[:, None]
        col = tl.arange(0, static.chunk)[None, :]
        logs = load_decays(decays, slot, head, 2, static)[:, None] - load_decays(decays, slot, head, 4, static)[None, :]
        passed = load_decays(decays, slot, head, 3, static)[:, None]
        is_kept = (row >= col) & (passed == load_decays(decays, slot, head, 5, static)[None, :])
        return tl.exp2(tl.where(is_kept, tl.minimum(logs, 0.0), float("-inf")))
