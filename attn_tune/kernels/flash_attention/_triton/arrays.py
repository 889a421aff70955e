"""The arrays of a forward and of a backward in the order in which every launch takes them."""

import jax

from attn_tune.ops.flash_attention.operands import BackwardInputs, Operands


def forward_arrays(operands: Operands) -> tuple[jax.Array | None, ...]:
    """All that a launch of a forward reads, in the order of the kernels' parameters.

    Offsets are not among them: the kernels find sequences by their ids.
    """
    o = operands
    return (o.q, o.k, o.v, *_masks(o), o.sinks, o.dropout, o.kv_lengths)


def kernel_arrays(inputs: BackwardInputs) -> tuple[jax.Array | None, ...]:
    """All that a launch of a backward reads, in the order of the kernels' parameters.

    The sinks are not among them: they are in the lse.
    """
    o = inputs.operands
    return (
        o.q,
        o.k,
        o.v,
        inputs.dout,
        inputs.residuals.lse,
        inputs.delta,
        *_masks(o),
        o.dropout,
        o.kv_lengths,
    )


def _masks(o: Operands) -> tuple[jax.Array | None, ...]:
    return o.bias, o.mask, o.q_segments, o.kv_segments, o.q_positions, o.kv_positions
