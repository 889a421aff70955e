"""The second launch of the forward that splits the keys: the parts of a row, weighed by their lse."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from collections.abc import Sequence

import jax
import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.device.static import Static
from attn_tune.kernels.lang.triton.device.tile import LN2


def combine(
    out: jax.Array, lse: jax.Array, out_types: Sequence[jax.ShapeDtypeStruct], static: Static
) -> tuple[jax.Array, ...]:
    """``out`` [B, T, N, V] and the natural ``lse`` [B, N, T] from those of the parts.

    Args:
      out: [B, K, num_splits, group_size * T, V], normalised within each part.
      lse: [B, K, num_splits, group_size * T], in base 2.
    """
    batch, kv_heads, num_splits, rows, _ = out.shape
    return triton_call(
        combine_kernel,
        out,
        lse,
        out_types=out_types,
        # A row a program: all parts of it are loaded at once, and there are a few hundred rows at least.
        grid=(batch * kv_heads * rows, 1, 1),
        constexprs={"num_splits": num_splits, "static": static},
        num_warps=4 if num_splits * static.block_v >= 2048 else 1,
        num_stages=1,
        name="flash_attention_fwd_combine",
    )


@triton.jit
def combine_kernel(part_out, part_lse, out, lse, num_splits: tl.constexpr, static: tl.constexpr):
    """One program per packed row. A part without keys weighs nothing; a row without any is zero."""
    num_rows: tl.constexpr = static.q_len * static.group_size
    program = tl.program_id(0)
    row = program % num_rows
    slot = program // num_rows
    batch = slot // static.num_kv_heads
    head = slot % static.num_kv_heads * static.group_size + row % static.group_size
    query = row // static.group_size

    parts = slot.to(tl.int64) * (num_splits * num_rows) + row
    parts += tl.arange(0, num_splits) * num_rows
    cols = tl.arange(0, static.block_v)
    values = tl.load(
        part_out + parts[:, None] * static.v_head_dim + cols[None, :],
        mask=cols[None, :] < static.v_head_dim,
        other=0.0,
    )
    log_sums = tl.load(part_lse + parts)
    maximum = tl.max(log_sums, 0)
    seen = maximum > float("-inf")
    shift = tl.where(seen, maximum, 0.0)
    weights = tl.exp2(log_sums - shift)
    total = tl.sum(weights, 0)
    scale = tl.where(seen, 1.0 / tl.where(seen, total, 1.0), 0.0)
    result = tl.sum(values * weights[:, None], 0) * scale

    out += ((batch.to(tl.int64) * static.q_len + query) * static.num_q_heads + head) * static.v_head_dim
    tl.store(out + cols, result.to(out.dtype.element_ty), mask=cols < static.v_head_dim)
    row_lse = tl.where(seen, (maximum + tl.log2(tl.where(seen, total, 1.0))) * LN2, float("-inf"))
    lse += (batch * static.num_q_heads + head).to(tl.int64) * static.q_len + query
    tl.store(lse, row_lse)
