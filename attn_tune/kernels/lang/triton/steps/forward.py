"""The one launch: each state is read once, taken through its few tokens in registers, and written once."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.lang.recurrent import Recurrent
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.device.tile import LOG2E
from attn_tune.kernels.lang.triton.steps.config import Config

# The place of the initial states among the operands.
_POOL = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Static:
    """Compile-time constants: Triton's cache is keyed by this value's text.

    Attributes:
      batch: sequences.
      length: tokens of a sequence; of a ragged call those of all.
      heads, key_heads, group: value heads, query/key heads, and how many of the former share one of the latter.
      width, v_width: rows and columns of a state.
      block_h, block_v, tiles: the power of two that holds the rows, columns of a program, and programs of a state.
      ragged: sequences lie end to end, and an array says where each begins.
      has_final: the final states are stored.
      pool: slots of the pool in which states are updated; 0: the states of the sequences are read, and others made.
      gate: ``none``, ``constant``, ``head`` or ``channel``, as of the problem.
      has_delta: what the state knows under the key is taken from the value.
      scale: multiplies the output.
    """

    batch: int
    length: int
    heads: int
    key_heads: int
    group: int
    width: int
    v_width: int
    block_h: int
    block_v: int
    tiles: int
    ragged: bool
    has_final: bool
    pool: int
    gate: str
    has_delta: bool
    scale: float


def forward(problem: Recurrent, config: Config, operands: Any) -> dict[str, jax.Array]:
    """``out`` [R, T, N, V], and the final states ``state`` [B, N, H, V] if the problem has them.

    Of a pool ``state`` is the pool, in place if it is donated.
    """
    p, o = problem, operands
    pool = 0 if o.slots is None else o.initial_state.shape[0]
    tiles = -(-p.v_head_dim // config.block_v)
    static = Static(
        batch=p.batch,
        length=p.length,
        heads=p.num_value_heads,
        key_heads=p.num_key_heads,
        group=p.group_size,
        width=p.head_dim,
        v_width=p.v_head_dim,
        block_h=padded(p.head_dim),
        block_v=config.block_v,
        tiles=tiles,
        ragged=p.ragged,
        has_final=p.has_final_state,
        pool=pool,
        gate=p.gate,
        has_delta=p.has_delta,
        scale=p.scale,
    )
    # Of a ragged call also the tokens before the first sequence and behind the last one.
    parts = p.batch + 2 if p.ragged else p.batch
    state = (pool or p.batch, p.num_value_heads, p.head_dim, p.v_head_dim) if p.has_final_state else (1,)
    out, state = triton_call(
        steps_kernel,
        *o,
        out_types=[jax.ShapeDtypeStruct(o.v.shape, o.v.dtype), jax.ShapeDtypeStruct(state, jnp.float32)],
        grid=(tiles * p.num_value_heads * parts, 1, 1),
        constexprs={"static": static},
        num_warps=config.num_warps,
        num_stages=1,
        name=f"{p.signature.op}_steps",
        input_output_aliases={_POOL: 1} if pool else {},
    )
    return {"out": out, "state": state} if p.has_final_state else {"out": out}


@triton.jit
def steps_kernel(q, k, v, g, beta, initial_state, cu_seqlens, slots, out, state, static: tl.constexpr):
    """One program per tile of columns, head and sequence; tokens of no sequence get zeros."""
    tile = tl.program_id(0) % static.tiles
    head = tl.program_id(0) // static.tiles % static.heads
    part = tl.program_id(0) // (static.tiles * static.heads)
    sequence = part
    if static.ragged:
        sequence = tl.where(part <= static.batch, part - 1, -1)
        begin = tl.load(cu_seqlens + part - 1, mask=part > 0, other=0)
        end = tl.load(cu_seqlens + part, mask=part <= static.batch, other=static.length)
    else:
        begin = part * static.length
        end = begin + static.length
    rows = tl.arange(0, static.block_h)
    cols = tile * static.block_v + tl.arange(0, static.block_v)
    is_row = rows < static.width
    is_col = cols < static.v_width
    if sequence >= 0:
        number, height = sequence, static.width
        if static.pool:
            number = tl.load(slots + sequence)
            # Of a slot that the pool does not have no row is read or written.
            height = tl.where((number >= 0) & (number < static.pool), static.width, 0)
        inside = (rows < height)[:, None] & is_col[None, :]
        place = (number.to(tl.int64) * static.heads + head) * (static.width * static.v_width)
        offsets = place + rows[:, None] * static.v_width + cols[None, :]
        held = tl.full([static.block_h, static.block_v], 0, tl.float32)
        if initial_state is not None:
            held = tl.load(initial_state + offsets, mask=inside, other=0.0)
        for step in tl.range(0, end - begin):
            token = begin + step
            own = token.to(tl.int64) * static.heads + head
            key = (token.to(tl.int64) * static.key_heads + head // static.group) * static.width
            k_row = tl.load(k + key + rows, mask=is_row, other=0.0).to(tl.float32)
            q_row = tl.load(q + key + rows, mask=is_row, other=0.0).to(tl.float32)
            update = tl.load(v + own * static.v_width + cols, mask=is_col, other=0.0).to(tl.float32)
            if static.gate == "channel":
                gates = tl.load(g + own * static.width + rows, mask=is_row, other=0.0)
                held *= tl.exp2(gates * LOG2E)[:, None]
            elif static.gate == "head":
                held *= tl.exp2(tl.load(g + own) * LOG2E)
            elif static.gate == "constant":
                held *= tl.exp2(tl.load(g + head) * LOG2E)
            if static.has_delta:
                update -= tl.sum(held * k_row[:, None], 0)
            if beta is not None:
                update *= tl.load(beta + own)
            held += k_row[:, None] * update[None, :]
            found = tl.sum(held * q_row[:, None], 0) * static.scale
            tl.store(out + own * static.v_width + cols, found.to(out.dtype.element_ty), mask=is_col)
        if static.has_final:
            tl.store(state + offsets, held, mask=inside)
    else:
        for step in tl.range(0, end - begin):
            token = begin + step
            own = (token.to(tl.int64) * static.heads + head) * static.v_width
            tl.store(out + own + cols, tl.full([static.block_v], 0, out.dtype.element_ty), mask=is_col)
