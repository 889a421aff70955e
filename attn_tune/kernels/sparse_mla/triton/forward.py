"""The launch of sparse latent attention: a tile of heads of one query walks the keys that its indices name.

The latents of a tile of keys are in shared memory once, for the logits and for the values. The softmax is that of
FlashAttention-2 (arXiv 2307.08691, algorithm 1) in base 2.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.device.tile import LN2, LOG2E
from attn_tune.kernels.sparse_mla._triton.merge import merged
from attn_tune.kernels.sparse_mla.triton.config import Config
from attn_tune.ops.sparse_mla.operands import Operands
from attn_tune.ops.sparse_mla.problem import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Static:
    """Compile-time constants: Triton's cache is keyed by this value's text.

    Attributes:
      q_len, kv_len, heads, selected: queries and keys of a sequence, query heads, indices of a query.
      head_dim, v_head_dim: the widths of keys and of latents.
      block_v, block_r: the powers of two that hold a latent and the rotary part; 0 is none.
      block_n, block_k, splits: as in the config.
      tiles: tiles of heads.
      share: indices of a program, a multiple of ``block_k``.
      is_wide: offsets into the keys of a sequence do not fit 32 bits.
      scale: multiplies q.k into a base-2 logit.
      precision: of the products.
    """

    q_len: int
    kv_len: int
    heads: int
    selected: int
    head_dim: int
    v_head_dim: int
    block_v: int
    block_r: int
    block_n: int
    block_k: int
    splits: int
    tiles: int
    share: int
    is_wide: bool
    scale: float
    precision: str


def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, jax.Array]:
    """``out`` [B, T, N, V] in q's dtype and ``lse`` [B, T, N] in float32."""
    static = _static_of(problem, config, operands)
    rows = operands.q.shape[:3]
    parts = rows if config.splits == 1 else (config.splits, *rows)
    out, lse = triton_call(
        sparse_kernel,
        *operands,
        out_types=[
            jax.ShapeDtypeStruct(
                (*parts, static.v_head_dim), operands.q.dtype if config.splits == 1 else jnp.dtype(jnp.float32)
            ),
            jax.ShapeDtypeStruct(parts, jnp.float32),
        ],
        grid=(rows[0] * rows[1] * static.tiles * config.splits, 1, 1),
        constexprs={"static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        name="sparse_mla",
    )
    return {"out": out, "lse": lse} if config.splits == 1 else merged(out, lse, operands.q.dtype)


def _static_of(problem: Problem, config: Config, operands: Operands) -> Static:
    _, q_len, heads, head_dim = operands.q.shape
    rest, selected = head_dim - problem.v_head_dim, operands.indices.shape[2]
    blocks = -(-selected // config.block_k)
    return Static(
        q_len=q_len,
        kv_len=operands.kv.shape[1],
        heads=heads,
        selected=selected,
        head_dim=head_dim,
        v_head_dim=problem.v_head_dim,
        block_v=padded(problem.v_head_dim),
        block_r=padded(rest) if rest else 0,
        block_n=config.block_n,
        block_k=config.block_k,
        splits=config.splits,
        tiles=-(-heads // config.block_n),
        share=-(-blocks // config.splits) * config.block_k,
        is_wide=operands.kv.shape[1] * head_dim >= 2**31,
        scale=problem.scale * LOG2E.value,
        precision="tf32x3" if problem.dtype == "float32" else "tf32",
    )


@triton.jit
def sparse_kernel(q, kv, indices, sinks, out, lse, static: tl.constexpr):
    """One program per query, share of its indices, and tile of heads."""
    tile = tl.program_id(0) % static.tiles
    part = tl.program_id(0) // static.tiles % static.splits
    query = (tl.program_id(0) // (static.tiles * static.splits)).to(tl.int64)
    head = tile * static.block_n + tl.arange(0, static.block_n)
    cols = tl.arange(0, static.block_v)[None, :]
    is_head = head < static.heads
    row = query * static.heads + head
    q += row[:, None] * static.head_dim
    q_tile = tl.load(q + cols, mask=is_head[:, None] & (cols < static.v_head_dim), other=0.0)
    if static.block_r > 0:
        rest_cols = static.v_head_dim + tl.arange(0, static.block_r)[None, :]
        q_rest = tl.load(q + rest_cols, mask=is_head[:, None] & (rest_cols < static.head_dim), other=0.0)

    maximum = tl.full([static.block_n], float("-inf"), tl.float32)
    total = tl.full([static.block_n], 0.0, tl.float32)
    acc = tl.full([static.block_n, static.block_v], 0.0, tl.float32)
    if sinks is not None:
        # The first part counts the sink; one of minus infinity adds nothing.
        sink = tl.load(sinks + head, mask=is_head, other=float("-inf")) * LOG2E
        maximum = tl.where(part == 0, sink, float("-inf"))
        total += tl.where(maximum == float("-inf"), 0.0, 1.0)

    kv += query // static.q_len * static.kv_len * static.head_dim
    indices += query * static.selected
    begin = part * static.share
    for start in tl.range(begin, tl.minimum(begin + static.share, static.selected), static.block_k):
        place = start + tl.arange(0, static.block_k)
        named = tl.load(indices + place, mask=place < static.selected, other=-1)
        valid = (named >= 0) & (named < static.kv_len)
        # Offsets of 64 bits take registers that the accumulator needs.
        offset = named * static.head_dim
        if static.is_wide:
            offset = named.to(tl.int64) * static.head_dim
        keys = kv + offset[:, None]
        latents = tl.load(keys + cols, mask=valid[:, None] & (cols < static.v_head_dim), other=0.0)
        x = tl.dot(q_tile, tl.trans(latents), input_precision=static.precision)
        if static.block_r > 0:
            rest = tl.load(keys + rest_cols, mask=valid[:, None] & (rest_cols < static.head_dim), other=0.0)
            x = tl.dot(q_rest, tl.trans(rest), x, input_precision=static.precision)
        x = tl.where(valid[None, :], x * static.scale, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(x, 1))
        shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = tl.exp2(x - shift[:, None])
        correction = tl.exp2(maximum - shift)
        total = total * correction + tl.sum(weights, 1)
        maximum = new_maximum
        acc = tl.dot(weights.to(latents.dtype), latents, acc * correction[:, None], input_precision=static.precision)

    seen = total > 0
    some = tl.where(seen, total, 1.0)
    queries = tl.num_programs(0) // (static.tiles * static.splits)
    row += part.to(tl.int64) * queries * static.heads
    tl.store(lse + row, tl.where(seen, (maximum + tl.log2(some)) * LN2, float("-inf")), mask=is_head)
    values = (acc / some[:, None]).to(out.dtype.element_ty)
    tl.store(out + row[:, None] * static.v_head_dim + cols, values, mask=is_head[:, None] & (cols < static.v_head_dim))
