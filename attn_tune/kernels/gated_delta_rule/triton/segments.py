"""The states at the start of each segment of a sequence, so that segments are walked at one time.

A segment makes ``M S + Z`` of the state ``S`` at its start: ``Z`` is the state that it ends with when it starts with
zero, and a column of ``M`` that with which it ends when it starts with a column of the identity and all values are
zero. One launch walks all segments for both, and one applies them in turn. This is exact: nothing is left out because
it decayed.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.gated_delta_rule.triton.config import ForwardConfig
from attn_tune.kernels.gated_delta_rule.triton.prepare import Prepared
from attn_tune.kernels.gated_delta_rule.triton.scan import carried, updates
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.chunks.segments import starts_of
from attn_tune.kernels.lang.triton.chunks.states import chunks_of, store_state
from attn_tune.kernels.lang.triton.chunks.static import Static, load_lower, tokens_of
from attn_tune.ops.gated_delta_rule.operands import Operands


def segment_starts(operands: Operands, prepared: Prepared, config: ForwardConfig, static: Static) -> jax.Array:
    """The float32 state at the start of each segment ``[B, segments, N, H, V]``."""
    o = operands
    places = (static.batch, static.segments, static.heads, static.width)
    tiles = static.tiles + -(-static.width // static.block_v)
    matrices, ends = triton_call(
        transitions_kernel,
        o.k,
        o.v,
        o.beta,
        o.cu_seqlens,
        prepared.solved,
        prepared.decays,
        out_types=[
            jax.ShapeDtypeStruct((*places, static.width), jnp.float32),
            jax.ShapeDtypeStruct((*places, static.v_width), jnp.float32),
        ],
        grid=(tiles * static.heads * (static.segments - 1) * static.batch, 1, 1),
        constexprs={"static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        name="gated_delta_rule_transitions",
    )
    return starts_of(o.initial_state, matrices, ends, static, "gated_delta_rule_starts")


@triton.jit
def transitions_kernel(k, v, beta, cu_seqlens, solved, decays, matrices, ends, static: tl.constexpr):
    """One program per tile of columns of ``Z`` or of ``M``, head and segment of a sequence but the last one."""
    tiles: tl.constexpr = static.tiles + (static.width + static.block_v - 1) // static.block_v
    tile = tl.program_id(0) % tiles
    head = tl.program_id(0) // tiles % static.heads
    segment = tl.program_id(0) // (tiles * static.heads) % (static.segments - 1)
    part = tl.program_id(0) // (tiles * static.heads * (static.segments - 1))
    if static.ragged:
        part += 1
    sequence, begin, end, place = tokens_of(cu_seqlens, part, static)
    first, last = chunks_of(begin, end, segment, static)
    of_values = tile < static.tiles
    cols = tl.where(of_values, tile, tile - static.tiles) * static.block_v + tl.arange(0, static.block_v)
    v_end = tl.where(of_values, end, 0)
    rows = tl.arange(0, static.block_h)
    held = tl.where((rows[:, None] == cols[None, :]) & (tile >= static.tiles), 1.0, 0.0)
    for chunk in tl.range(first, last):
        start = begin + chunk * static.chunk
        index = (place + chunk) * static.heads + head
        values, k_tile, _rounded, after, factor = updates(
            held, k, v, beta, decays, start, end, v_end, head, index, cols, False, False, static
        )
        update = tl.dot(load_lower(solved, index, static.chunk), values, input_precision=static.precision)
        held = carried(held, k_tile, update, after, factor, static)
    index = (sequence * static.segments + segment) * static.heads + head
    if of_values:
        store_state(ends, index, held, cols, static)
    else:
        inside = (rows < static.width)[:, None] & (cols < static.width)[None, :]
        base = matrices + index.to(tl.int64) * (static.width * static.width)
        tl.store(base + rows[:, None] * static.width + cols[None, :], held, mask=inside)
