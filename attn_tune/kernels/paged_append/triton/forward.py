"""The one launch that writes new keys and values into a cache, with their codes and scales."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.paged_append.triton.config import Config
from attn_tune.kernels.paged_append.triton.static import static_of
from attn_tune.ops.paged_append.operands import Operands
from attn_tune.ops.paged_append.problem import Problem

# Ends of sequences that are compared with a token at a time.
_ENDS = tl.constexpr(128)
# Added and taken away again, it leaves a float32 below 2**22 rounded to the nearest whole number, ties to even ones.
_ROUNDER = tl.constexpr(1.5 * 2.0**23)
# The places of the caches and their scales among the operands.
_UPDATED = {"k": 2, "v": 3, "k_scale": 7, "v_scale": 8}


def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, jax.Array]:
    """The caches ``k`` and ``v`` and, where tokens have scales, ``k_scale`` and ``v_scale``; in place if donated."""
    static = static_of(problem, config, operands)
    made = ["k"] if operands.v is None else ["k", "v"]
    if problem.kv_scale == "token":
        made += ["k_scale", "v_scale"]
    # The kernel has a pointer for each of the four outputs; those that the call does not make are a byte long.
    types = [
        jax.ShapeDtypeStruct(getattr(operands, name).shape, getattr(operands, name).dtype)
        if name in made
        else jax.ShapeDtypeStruct((1,), jnp.int8)
        for name in _UPDATED
    ]
    found = triton_call(
        append_kernel,
        *operands,
        out_types=types,
        grid=(-(-static.rows // config.block_rows), 1, 1),
        constexprs={"static": static},
        num_warps=config.num_warps,
        num_stages=1,
        name="paged_append",
        input_output_aliases={_UPDATED[name]: i for i, name in enumerate(_UPDATED) if name in made},
    )
    return {name: x for name, x in zip(_UPDATED, found, strict=True) if name in made}


@triton.jit
def append_kernel(
    new_k,
    new_v,
    k_before,
    v_before,
    page_table,
    kv_lens,
    cu_q_lens,
    k_scale,
    v_scale,
    k,
    v,
    k_scale_made,
    v_scale_made,
    static: tl.constexpr,
):
    """One program per ``block_rows`` rows, keys and values of one token and head."""
    row = tl.program_id(0) * static.block_rows + tl.arange(0, static.block_rows)
    token = row // static.num_kv_heads
    head = row % static.num_kv_heads
    valid = row < static.rows
    # Loads that wait for no place in the cache are on their way before those that find it.
    k_rows = load_rows(new_k, row, static.head_dim, static.block_h, static)
    v_rows = load_rows(new_v, row, static.v_head_dim, static.block_v, static)
    if cu_q_lens is None:
        sequence = token // static.new
        position = token % static.new - static.new
    else:
        sequence = token * 0
        for start in range(0, static.batch, _ENDS):
            index = start + tl.arange(0, _ENDS)
            ends = tl.load(cu_q_lens + 1 + index, mask=index < static.batch, other=2**31 - 1)
            sequence += tl.sum((ends[None, :] <= token[:, None]).to(tl.int32), 1)
        valid &= sequence < static.batch
        position = token - tl.load(cu_q_lens + 1 + sequence, mask=valid, other=0)
    position += tl.load(kv_lens + sequence, mask=valid, other=0)
    valid &= (position >= 0) & (position < static.capacity)
    page = sequence
    slot = position
    if page_table is not None:
        entries = sequence.to(tl.int64) * static.table_width + position // static.page_size
        page = tl.load(page_table + entries, mask=valid, other=-1)
        slot = position % static.page_size
        valid &= (page >= 0) & (page < static.pages)

    offset = page.to(tl.int64) * static.scale_steps[0] + slot * static.scale_steps[1] + head * static.scale_steps[2]
    k_codes, k_factor = coded(k_rows, k_scale, head, static)
    place = page.to(tl.int64) * static.k_steps[0] + slot.to(tl.int64) * static.k_steps[1]
    place += head.to(tl.int64) * static.k_steps[2]
    cols = tl.arange(0, static.block_h)[None, :]
    tl.store(k + place[:, None] + cols, k_codes, mask=valid[:, None] & (cols < static.head_dim))

    v_codes, v_factor = coded(v_rows, v_scale, head, static)
    place = page.to(tl.int64) * static.v_steps[0] + slot.to(tl.int64) * static.v_steps[1]
    place += head.to(tl.int64) * static.v_steps[2]
    cols = tl.arange(0, static.block_v)[None, :]
    inside = valid[:, None] & (cols < static.v_head_dim)
    if static.v_offset > 0:
        tl.store(k + static.v_offset + place[:, None] + cols, v_codes, mask=inside)
    else:
        tl.store(v + place[:, None] + cols, v_codes, mask=inside)
    if static.kv_scale == "token":
        tl.store(k_scale_made + offset, k_factor, mask=valid)
        tl.store(v_scale_made + offset, v_factor, mask=valid)


@triton.jit
def load_rows(new, row, width: tl.constexpr, block: tl.constexpr, static: tl.constexpr):
    """New keys or values of ``row``, ``[block_rows, block]``."""
    cols = tl.arange(0, block)[None, :]
    inside = (row < static.rows)[:, None] & (cols < width)
    return tl.load(new + row.to(tl.int64)[:, None] * width + cols, mask=inside, other=0.0)


@triton.jit
def coded(x, scale, head, static: tl.constexpr):
    """The rows ``x`` of keys or values as they are stored, and what multiplies their codes."""
    factor = tl.full([static.block_rows], 1.0, tl.float32)
    if static.largest is not None:
        wide = x.to(tl.float32)
        if static.kv_scale == "token":
            factor = tl.maximum(tl.max(tl.abs(wide), 1), static.smallest) / static.largest
        if static.kv_scale == "head":
            factor = tl.load(scale + head)
        if static.kv_scale == "tensor":
            factor *= tl.load(scale)
        wide = tl.minimum(tl.maximum(wide / factor[:, None], -static.largest), static.largest)
        x = (wide + _ROUNDER - _ROUNDER).to(tl.int8) if static.is_int8 else wide.to(tl.float8e4nv)
    return x, factor
