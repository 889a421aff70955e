"""The launches of a ragged call over latents: decoding for the first sequences, and tiles of rows for all others.

A row is a query and a head. A tile holds rows of one sequence in order: part of a token of 128 heads, or several tokens
of 16. Which rows a program has it finds from ``cu_q_lens``, so that no length is needed where the call is traced.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.device.tile import LN2
from attn_tune.kernels.lang.triton.interpret import is_interpreted
from attn_tune.kernels.lang.triton.tiles import block_cap
from attn_tune.kernels.paged_decode._triton.config import Config as DecodeConfig
from attn_tune.kernels.paged_decode._triton.schedule import clamped
from attn_tune.kernels.paged_decode._triton.static import Static, static_of
from attn_tune.kernels.paged_decode.triton.forward import forward as decode_forward
from attn_tune.kernels.ragged_paged._triton.decoding import (
    decode_config,
    decode_operands,
    decode_problem,
    decode_shapes,
)
from attn_tune.kernels.ragged_paged.triton_latent.attend import attend
from attn_tune.kernels.ragged_paged.triton_latent.config import Config
from attn_tune.ops.ragged_paged.operands import Operands
from attn_tune.ops.ragged_paged.problem import Problem

# Rows of a tile that decodes, at most, and its stages: two tiles of latents of DeepSeek and its queries fit.
_DECODE_ROWS, _DECODE_STAGES = 32, 3


def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, jax.Array]:
    """``out`` [tokens, N, V] in q's dtype and ``lse`` [tokens, N] in float32."""
    o = operands
    tokens, heads, _ = o.q.shape
    # The tile of this launch, for the constants of the cache that both have.
    tile = DecodeConfig(
        block_q=config.block_q, block_k=config.block_k, num_warps=config.num_warps, num_stages=config.num_stages
    )
    # Both problems have the fields of a cache and its heads, which decide.
    static = static_of(cast(Any, problem), tile, decode_shapes(o), ptx=not is_interpreted(latent_kernel))
    # Each sequence, what is copied, and what belongs to none has one tile that is not full, at most.
    tiles = -(-tokens * heads // config.block_q) + min(static.batch, tokens) + 2
    out, lse = triton_call(
        latent_kernel,
        *(o.q, o.k, o.page_table, o.kv_lens, o.cu_q_lens, o.sinks, o.k_scale),
        *_decoded(problem, config, o, static),
        out_types=[
            jax.ShapeDtypeStruct((tokens, heads, static.v_head_dim), o.q.dtype),
            jax.ShapeDtypeStruct((tokens, heads), jnp.float32),
        ],
        grid=(tiles, 1, 1),
        constexprs={"tokens": tokens, "causal": problem.causal, "static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        maxnreg=config.max_registers,
        name="ragged_paged_latent",
    )
    return {"out": out, "lse": lse}


def _decoded(
    problem: Problem, config: Config, operands: Operands, static: Static
) -> tuple[jax.Array | None, jax.Array | None]:
    """The output and the natural lse of the first sequences; None of a config that does not decode."""
    if config.decode_programs is None:
        return None, None
    decoding = dataclasses.replace(
        decode_config(problem, config),
        block_q=min(_DECODE_ROWS, block_cap(static.num_q_heads)),
        num_warps=8 if static.num_q_heads > 16 or static.has_codes else 4,
        num_stages=_DECODE_STAGES,
    )
    found = decode_forward(decode_problem(problem), decoding, decode_operands(operands))
    return found["out"], found["lse"]


@triton.jit
def latent_kernel(
    q,
    k,
    page_table,
    kv_lens,
    cu_q_lens,
    sinks,
    k_scale,
    decoded,
    decoded_lse,
    out,
    lse,
    tokens: tl.constexpr,
    causal: tl.constexpr,
    static: tl.constexpr,
):
    """One program per tile of rows; those with most keys of a sequence first.

    Of ``static``, what counts queries (``q_len``, ``rows``, ``tiles``) is that of decoding, and is not read here.
    """
    index = tl.program_id(0)
    heads: tl.constexpr = static.num_q_heads
    block: tl.constexpr = static.block_q
    sequences = tl.arange(0, static.block_b)
    is_sequence = sequences < static.batch
    begins = tl.load(cu_q_lens + sequences, mask=is_sequence, other=tokens)
    ends = tl.load(cu_q_lens + sequences + 1, mask=is_sequence, other=tokens)
    new = tl.maximum(ends - begins, 0)
    decodes = index * 0
    if decoded is not None:
        # Those before the first sequence that has not one query, its own number.
        others = (begins != sequences) | (new != 1) | (sequences >= static.batch)
        decodes = tl.min(tl.where(others, sequences, static.block_b), 0)
    tiles = tl.where(is_sequence & (sequences >= decodes), (new * heads + block - 1) // block, 0)
    last_tiles = tl.cumsum(tiles, 0)
    walked = tl.sum(tiles, 0)
    copied = (decodes * heads + block - 1) // block
    if index < walked:
        tile = walked - 1 - index
        sequence = tl.sum((last_tiles <= tile).to(tl.int32), 0)
        is_own = sequences == sequence
        first_row = (tile - tl.sum(tl.where(sequences < sequence, tiles, 0), 0)) * block
        begin = tl.sum(tl.where(is_own, begins, 0), 0)
        count = tl.sum(tl.where(is_own, new, 0), 0)
        length = clamped(tl.load(kv_lens + sequence), static)
        places, is_row = _rows_of(begin, first_row, count, static)
        arrays = (q, k, page_table, sinks, k_scale)
        state = attend(arrays, places, is_row, sequence, first_row, count, length, causal, static)
        _store(out, lse, state, places, is_row, static)
    elif index < walked + copied:
        if decoded is not None:
            places, is_row = _rows_of(index * 0, (index - walked) * block, decodes, static)
            cols = tl.arange(0, static.block_v)[None, :]
            inside = is_row[:, None] & (cols < static.v_head_dim)
            values = tl.load(decoded + places[:, None] * static.v_head_dim + cols, mask=inside)
            tl.store(out + places[:, None] * static.v_head_dim + cols, values, mask=inside)
            tl.store(lse + places, tl.load(decoded_lse + places, mask=is_row), mask=is_row)
    else:
        # Behind the last sequence.
        begin = tl.load(cu_q_lens + static.batch)
        first_row = (index - walked - copied) * block
        if first_row < (tokens - begin) * heads:
            places, is_row = _rows_of(begin, first_row, tokens - begin, static)
            nothing = tl.full([block, static.block_v], 0.0, tl.float32)
            unseen = tl.full([block], float("-inf"), tl.float32)
            _store(out, lse, (nothing, unseen), places, is_row, static)


@triton.jit
def _rows_of(begin, first_row, count, static: tl.constexpr):
    """The places of a tile's rows among those of all tokens, and whether each has one of ``count`` queries."""
    row = first_row + tl.arange(0, static.block_q)
    return begin.to(tl.int64) * static.num_q_heads + row, row < count * static.num_q_heads


@triton.jit
def _store(out, lse, state, places, is_row, static: tl.constexpr):
    """Stores the rows of a tile, the output and the base-2 lse."""
    values, log_sum = state
    cols = tl.arange(0, static.block_v)[None, :]
    tl.store(lse + places, log_sum * LN2, mask=is_row)
    inside = is_row[:, None] & (cols < static.v_head_dim)
    tl.store(out + places[:, None] * static.v_head_dim + cols, values.to(out.dtype.element_ty), mask=inside)
