"""Device code of forwards: the online softmax (arXiv 2307.08691, algorithm 1) in base 2 over a span of keys."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.device.logits import finish_logits, kept, load_columns, squash
from attn_tune.kernels.lang.triton.device.tile import load_keys, span_of


@triton.jit
def walk_keys(state, q_tile, k, v, extras, rows, bounds, PART: tl.constexpr, static: tl.constexpr):
    """Folds one span of keys (``span_of``) into ``(accumulator, denominator, maximum)`` of the online softmax."""
    edge: tl.constexpr = PART != "full"
    acc, total, maximum = state
    # Without a mask or an infinite bias every row of a full tile sees a finite logit.
    guarded: tl.constexpr = (
        edge
        or (static.has_segments and not static.has_ranges)
        or static.has_positions
        or static.mask_strides is not None
        or static.bias_strides is not None
    )
    ragged: tl.constexpr = edge and static.ragged_k
    begin, end = span_of(bounds, PART)
    for start in tl.range(begin, end, static.block_k):
        k_tile = load_keys(k, start, extras.length, static.head_dim, static.block_h, ragged, static)
        x = squash(tl.dot(q_tile, tl.trans(k_tile), input_precision=static.precision), static)
        columns = load_columns(extras, start, 0, static)
        x = finish_logits(x, extras, rows, columns, edge, static)
        new_maximum = tl.maximum(maximum, tl.max(x, 1) * static.late_scale)
        shift = new_maximum
        if guarded:
            shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = tl.exp2(x * static.late_scale - shift[:, None])
        correction = tl.exp2(maximum - shift)
        total = total * correction + tl.sum(weights, 1)
        if static.keep_threshold is not None:
            weights = tl.where(kept(rows, columns, static), weights, 0.0)
        v_tile = load_keys(v, start, extras.length, static.v_head_dim, static.block_v, ragged, static)
        acc = tl.dot(
            weights.to(v_tile.dtype),
            v_tile,
            acc * correction[:, None],
            input_precision=static.precision,
        )
        maximum = new_maximum
    return acc, total, maximum
