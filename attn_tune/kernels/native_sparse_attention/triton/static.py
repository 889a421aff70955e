"""``Static``: the compile-time constants of the launches, and device code that forward and dq share."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from dataclasses import dataclass

import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.device.static import LOG2E, padded
from attn_tune.kernels.native_sparse_attention.triton.config import DkvConfig, DqConfig, ForwardConfig
from attn_tune.ops.native_sparse_attention.problem import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Static:
    """Compile-time constants: Triton's cache is keyed by this value's text.

    Attributes:
      q_len, kv_len, offset: lengths of a row of the arrays, and the position of query 0.
      heads, kv_heads, group: query heads, key heads, and query heads of a key head.
      head_dim, v_head_dim: widths.
      block_h, block_v, block_n: the powers of two, at least 16, that hold the widths and a group.
      selected, block_size, blocks: entries of a query, keys of a block, blocks of a row of the arrays.
      block_q, block_k, share: as in the config; 0 where it has none.
      is_wide: offsets into the keys of a row of the arrays do not fit 32 bits.
      scale: multiplies the gradients of queries and keys.
      scale2: multiplies q.k into a base-2 logit.
      precision: of the products.
    """

    q_len: int
    kv_len: int
    offset: int
    heads: int
    kv_heads: int
    group: int
    head_dim: int
    v_head_dim: int
    block_h: int
    block_v: int
    block_n: int
    selected: int
    block_size: int
    blocks: int
    block_q: int
    block_k: int
    share: int
    is_wide: bool
    scale: float
    scale2: float
    precision: str


def static_of(problem: Problem, config: ForwardConfig | DqConfig | DkvConfig) -> Static:
    """The constants of one launch."""
    p = problem
    owns_keys = isinstance(config, DkvConfig)
    return Static(
        q_len=p.q_len,
        kv_len=p.kv_len,
        offset=p.offset,
        heads=p.num_q_heads,
        kv_heads=p.num_kv_heads,
        group=p.group_size,
        head_dim=p.head_dim,
        v_head_dim=p.v_head_dim,
        block_h=padded(p.head_dim),
        block_v=padded(p.v_head_dim),
        block_n=padded(p.group_size),
        selected=p.num_selected,
        block_size=p.block_size,
        blocks=p.blocks,
        block_q=config.block_q if owns_keys else 0,
        block_k=config.block_k,
        share=config.share if owns_keys else 0,
        is_wide=p.kv_len * p.num_kv_heads * max(p.head_dim, p.v_head_dim) >= 2**31,
        scale=p.scale,
        scale2=p.scale * LOG2E,
        precision="tf32x3" if p.dtype == "float32" else "tf32",
    )


@triton.jit
def own_query(firsts, static: tl.constexpr):
    """``(row of the arrays, key head, query, first token of its sequence, last position that it sees)``.

    Queries of one key head follow one another, so that programs that run together read the same keys. The position is
    within the sequence, and -1 where there is none.
    """
    program = tl.program_id(0)
    query = program % static.q_len
    kv_head = program // static.q_len % static.kv_heads
    row = (program // (static.q_len * static.kv_heads)).to(tl.int64)
    first = 0
    if firsts is not None:
        first = tl.load(firsts + query)
    position = query + static.offset - first
    return row, kv_head, query, first, tl.where(position < 0, -1, position)


@triton.jit
def named_tokens(indices, start, position, static: tl.constexpr):
    """Tokens, within their sequence, of entries ``[start, start + block_k)`` of a query, and whether they are seen."""
    place = start + tl.arange(0, static.block_k)
    if static.block_k <= static.block_size:
        # One block: its number is one load.
        block = tl.load(indices + start // static.block_size)
    else:
        entry = place // static.block_size
        block = tl.load(indices + entry, mask=entry < static.selected, other=-1)
    # The block of the query itself is the last one. The tokens of an entry that names nothing are all below zero.
    newest = tl.where(position < 0, -1, position // static.block_size)
    token = tl.where(block <= newest, tl.maximum(block, -1), -1) * static.block_size + place % static.block_size
    return token, (token >= 0) & (token <= position)


@triton.jit
def gather(base, token, valid, stride: tl.constexpr, width: tl.constexpr, COLS: tl.constexpr, static: tl.constexpr):
    """``[block_k, COLS]`` of the tokens, zero where they are not valid and beyond ``width``."""
    cols = tl.arange(0, COLS)[None, :]
    # Offsets of 64 bits take registers that the accumulator needs.
    offset = token * stride
    if static.is_wide:
        offset = token.to(tl.int64) * stride
    pointers = base + offset[:, None] + cols
    if width < COLS:
        tile = tl.load(pointers, mask=valid[:, None] & (cols < width), other=0.0)
    else:
        tile = tl.load(pointers, mask=valid[:, None], other=0.0)
    return tile
