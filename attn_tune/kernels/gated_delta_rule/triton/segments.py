"""The states at the start of each segment of a sequence, so that segments are walked at one time."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import triton
import triton.language as tl

from attn_tune.kernels.gated_delta_rule._triton.prepare import Prepared
from attn_tune.kernels.gated_delta_rule.triton.config import ForwardConfig
from attn_tune.kernels.gated_delta_rule.triton.scan import carried, right_side
from attn_tune.kernels.lang.triton.chunks import segments
from attn_tune.kernels.lang.triton.chunks.segments import place_of, start_of, store_end
from attn_tune.kernels.lang.triton.chunks.static import Static
from attn_tune.ops.gated_delta_rule.operands import Operands


def segment_starts(operands: Operands, prepared: Prepared, config: ForwardConfig, static: Static) -> jax.Array:
    """The float32 state at the start of each segment ``[B, segments, N, H, V]``."""
    o = operands
    arrays = (o.k, o.v, o.beta, o.cu_seqlens, prepared.solved, prepared.decays)
    return segments.segment_starts("gated_delta_rule", transitions_kernel, arrays, o.initial_state, config, static)


@triton.jit
def transitions_kernel(k, v, beta, cu_seqlens, solved, decays, matrices, ends, static: tl.constexpr):
    """One program per tile of columns of ``Z`` or of ``M``, head and segment of a sequence but the last one."""
    sequence, segment, head, begin, end, place, first, last, cols, of_values = place_of(cu_seqlens, static)
    held = start_of(cols, of_values, static)
    v_end = tl.where(of_values, end, 0)
    for chunk in tl.range(first, last):
        start = begin + chunk * static.chunk
        index = (place + chunk) * static.heads + head
        values, k_tile, _rounded, after, factor = right_side(
            held, k, v, beta, decays, start, end, v_end, head, index, cols, False, static
        )
        held = carried(held, k_tile, values, after, factor, solved, index, static)
    store_end(matrices, ends, held, sequence, segment, head, cols, of_values, static)
