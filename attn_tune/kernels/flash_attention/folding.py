"""``vmap`` of a kernel: its custom call has no batching rule, so the mapped axis becomes part of the batch."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array

from attn_tune.kernels.flash_attention.operands import BackwardInputs, Operands

type Inputs = Operands | BackwardInputs


def fold_vmap(function: Callable[[Inputs], dict]) -> Callable[[Inputs], dict]:
    """``function`` with a rule for ``vmap``: the mapped axis is folded into ``B`` and the call stays one call.

    What cannot be folded runs element by element: sinks that differ per element (there is one set a call), dropout
    (the mask depends on the batch index, and each element must drop what it would drop alone), and the gradient of a
    bias that broadcasts over the batch (it would be summed over the mapped axis as well). An axis of size 0 gives empty
    outputs.
    """
    mapped = custom_vmap(function)

    @mapped.def_vmap
    def rule(axis_size: int, in_batched, inputs: Inputs):
        # From here on every array has the mapped axis in front; what was not mapped is only broadcast.
        is_mapped = in_batched[0]
        spread = jax.tree.map(
            lambda x, has_axis: x if has_axis else jnp.broadcast_to(x, (axis_size, *x.shape)),
            inputs,
            is_mapped,
        )
        if axis_size == 0:
            # A batch of none is no problem of the op. No element runs, but it has the types of the outputs.
            with jax.disable_jit(False):
                outputs = jax.lax.map(mapped, spread)
        elif _can_fold(spread, is_mapped):
            outputs = jax.tree.map(
                lambda x: x.reshape(axis_size, x.shape[0] // axis_size, *x.shape[1:]),
                mapped(_folded(spread, is_mapped)),
            )
        else:
            outputs = jax.lax.map(mapped, spread)
        return outputs, jax.tree.map(lambda _: True, outputs)

    return mapped


def _operands(inputs: Any) -> Operands:
    return inputs.operands if isinstance(inputs, BackwardInputs) else inputs


def _can_fold(spread: Inputs, is_mapped: Any) -> bool:
    operands, flags = _operands(spread), _operands(is_mapped)
    if operands.dropout is not None or (operands.sinks is not None and flags.sinks):
        return False
    if operands.bias is None or not isinstance(spread, BackwardInputs):
        return True
    return operands.bias.shape[1] == operands.q.shape[1]


def _folded(spread: Inputs, is_mapped: Any) -> Inputs:
    operands, flags = _operands(spread), _operands(is_mapped)
    size, batch = operands.q.shape[:2]
    is_backward = isinstance(spread, BackwardInputs)

    def fold(x: Array) -> Array:
        return x.reshape(size * batch, *x.shape[2:])

    def fold_pairs(x: Array | None, has_axis: bool, may_stay: bool) -> Array | None:
        if x is None:
            return None
        if x.shape[1] == 1 and not has_axis and may_stay:
            return x[0]
        return fold(jnp.broadcast_to(x, (size, batch, *x.shape[2:])))

    rest = operands._replace(bias=None, mask=None, sinks=None)
    folded = jax.tree.map(fold, rest)._replace(
        bias=fold_pairs(operands.bias, bool(flags.bias), not is_backward),
        mask=fold_pairs(operands.mask, bool(flags.mask), True),
        sinks=None if operands.sinks is None else operands.sinks[0],
    )
    if not isinstance(spread, BackwardInputs):
        return folded
    others = jax.tree.map(fold, (spread.residuals, spread.dout, spread.delta))
    return BackwardInputs(folded, *others)
