"""Device code of backwards whose programs own keys and walk the rows of all query heads that share them."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.device.logits import kept


@triton.jit
def steps_of(begin, end, static: tl.constexpr):
    """``(steps, steps of a head)`` of a span of rows ``[begin, end)`` of one query head; the second is at least 1.

    Dividing by zero is undefined: the compiler would conclude that an empty range has a step, and load it.
    """
    steps = (tl.maximum(end - begin, 0) + static.block_q - 1) // static.block_q
    return steps, tl.maximum(steps, 1)


@triton.jit
def place_of_step(step, begin, per_head, first_head, static: tl.constexpr):
    """``(query head, first row)`` of one step of the loop over all heads of a group and their rows.

    One loop: a loop in a loop would drain the pipeline at every head.
    """
    if static.group_size == 1:
        head = first_head
        start = begin + step * static.block_q
    else:
        head = first_head + step // per_head
        start = begin + step % per_head * static.block_q
    return head, start


@triton.jit
def add_values(dv_acc, weights, dout_tile, v_tile, rows, columns, static: tl.constexpr):
    """``(dv, gradient of the weights)`` after one ``[columns, rows]`` tile of weights."""
    dweights = tl.dot(v_tile, tl.trans(dout_tile), input_precision=static.precision)
    used = weights
    if static.keep_threshold is not None:
        keep = kept(rows, columns, static)
        used = tl.where(keep, weights * static.keep_scale, 0.0)
        dweights = tl.where(keep, dweights * static.keep_scale, 0.0)
    dv_acc = tl.dot(used.to(dout_tile.dtype), dout_tile, dv_acc, input_precision=static.precision)
    return dv_acc, dweights


@triton.jit
def logits_gradient(weights, dweights, row_delta, squashed, static: tl.constexpr):
    """The gradient of a ``[columns, rows]`` tile of logits before soft cap; ``squashed`` as from ``squash``."""
    dlogits = weights * (dweights - row_delta[None, :])
    if static.soft_cap is not None:
        dlogits *= 1.0 - squashed * squashed
    return dlogits
