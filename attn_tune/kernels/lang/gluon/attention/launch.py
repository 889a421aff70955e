"""Layouts of a forward's tiles and descriptors of arrays, for launches of attention on Hopper."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false

from dataclasses import dataclass
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from attn_tune.kernels.lang.gluon.device import product_layout


@dataclass(frozen=True)
class Layouts:
    """The layouts of tiles in registers.

    Queries and logits as they go into and come out of the first product, weights and output of the second.
    """

    queries: Any
    logits: Any
    weights: Any
    out: Any


def layouts_of(head_dim: int, block_k: int) -> Layouts:
    """The layouts of a forward."""
    out, logits = product_layout(head_dim), product_layout(block_k)
    return Layouts(
        queries=gl.DotOperandLayout(operand_index=0, parent=logits, k_width=2),
        logits=logits,
        weights=gl.DotOperandLayout(operand_index=0, parent=out, k_width=2),
        out=out,
    )


@gluon.jit
def describe(
    array,
    length,
    heads: gl.constexpr,
    shape: gl.constexpr,
    layout: gl.constexpr,
    plan: gl.constexpr,
    static: gl.constexpr,
):
    """A descriptor of a ``[B, length, heads * H]`` array: what is beyond a sequence's end is read as zero."""
    width: gl.constexpr = heads * static.head_dim
    return tma.make_tensor_descriptor(array, [plan.batch, length, width], [length * width, width, 1], shape, layout)
