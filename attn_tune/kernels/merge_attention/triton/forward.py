"""The one launch of a merge: every part is read once, the whole is written once."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.device.tile import LN2, LOG2E
from attn_tune.kernels.merge_attention.triton.config import Config
from attn_tune.ops.merge_attention.operands import Operands
from attn_tune.ops.merge_attention.problem import Problem


def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, jax.Array]:
    """``out`` [rows, N, V] in its dtype and ``lse`` [rows, N] in float32."""
    shape = operands.out0.shape
    rows, width = shape[0] * shape[1], shape[2]
    out, lse = triton_call(
        merge_kernel,
        *operands,
        out_types=[
            jax.ShapeDtypeStruct(shape, jnp.dtype(problem.merged_dtype)),
            jax.ShapeDtypeStruct(shape[:2], jnp.float32),
        ],
        grid=(-(-rows // config.block_rows), 1, 1),
        constexprs={"rows": rows, "width": width, "block_rows": config.block_rows, "block_v": padded(width)},
        num_warps=config.num_warps,
        num_stages=1,
        name="merge_attention",
    )
    return {"out": out, "lse": lse}


@triton.jit
def merge_kernel(
    out0,
    lse0,
    out1,
    lse1,
    out2,
    lse2,
    out3,
    lse3,
    out,
    lse,
    rows: tl.constexpr,
    width: tl.constexpr,
    block_rows: tl.constexpr,
    block_v: tl.constexpr,
):
    """One program per ``block_rows`` rows."""
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    is_row = row < rows
    cols = tl.arange(0, block_v)[None, :]
    inside = is_row[:, None] & (cols < width)
    places = row.to(tl.int64)[:, None] * width + cols
    unseen = tl.full([block_rows], float("-inf"), tl.float32)

    log0 = tl.load(lse0 + row, mask=is_row, other=float("-inf"))
    log1 = tl.load(lse1 + row, mask=is_row, other=float("-inf"))
    log2 = unseen
    log3 = unseen
    if lse2 is not None:
        log2 = tl.load(lse2 + row, mask=is_row, other=float("-inf"))
    if lse3 is not None:
        log3 = tl.load(lse3 + row, mask=is_row, other=float("-inf"))
    maximum = tl.maximum(tl.maximum(log0, log1), tl.maximum(log2, log3))
    shift = tl.where(maximum == float("-inf"), 0.0, maximum)

    total = weight_of(log0, shift) + weight_of(log1, shift)
    acc = weighed(out0, log0, shift, places, inside) + weighed(out1, log1, shift, places, inside)
    if out2 is not None:
        total += weight_of(log2, shift)
        acc += weighed(out2, log2, shift, places, inside)
    if out3 is not None:
        total += weight_of(log3, shift)
        acc += weighed(out3, log3, shift, places, inside)
    # NaN is not zero, and stays.
    none = total == 0
    whole = tl.where(none, 1.0, total)
    tl.store(lse + row, tl.where(none, float("-inf"), shift + tl.log2(whole) * LN2), mask=is_row)
    tl.store(out + places, (acc / whole[:, None]).to(out.dtype.element_ty), mask=inside)


@triton.jit
def weight_of(log, shift):
    """The weight of a part beside the heaviest one."""
    return tl.exp2((log - shift) * LOG2E)


@triton.jit
def weighed(part, log, shift, places, inside):
    """The rows of a part times their weights; zero for a part that saw nothing, whatever it holds.

    The load does not wait for the lse, by which it could be left out.
    """
    values = tl.load(part + places, mask=inside, other=0.0).to(tl.float32)
    return tl.where((log == float("-inf"))[:, None], 0.0, values) * weight_of(log, shift)[:, None]
