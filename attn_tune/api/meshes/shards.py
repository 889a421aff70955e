"""One shard of a call: its groups and its place, and the sums of gradients over shards."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from attn_tune.api.declaration import Call, operands_of
from attn_tune.api.meshes.axes import Axes, summed_axes
from attn_tune.schema.errors import UsageError


def own_part(call: Call, operands: Any, axes: Axes) -> Any:
    """The operands of one shard: its group of those that shards share, and its place among the shards."""
    whole = operands
    for group in axes.shared:
        for name, dim in _with_letter(call, whole, group):
            index = _own_group(whole, name, dim, axes.shared[group])
            if index is not None:
                one = jax.lax.dynamic_slice_in_dim(getattr(operands, name), index, 1, dim)
                operands = operands._replace(**{name: one})
    if call.place is None:
        return operands
    sizes = call.sizes(whole)
    first = {
        letter: jnp.asarray(jax.lax.axis_index(names) * sizes[letter] if names else 0)
        for letter, names in axes.of.items()
        if letter in call.parallel
    }
    return call.place(operands, first)


def _with_letter(call: Call, operands: Any, letter: str) -> list[tuple[str, int]]:
    """The operands that have this letter, each with the dimension."""
    return [
        (name, call.letters[name].index(letter))
        for name in operands._fields
        if letter in call.letters[name] and getattr(operands, name) is not None
    ]


def _own_group(operands: Any, name: str, dim: int, shared: tuple[str, ...]) -> Array | None:
    """The index of the group that a shard reads, or None if it has no other."""
    groups = getattr(operands, name).shape[dim]
    if not shared or groups == 1:
        return None
    return jax.lax.axis_index(shared) * groups // jax.lax.axis_size(shared)


def summed_outputs(call: Call, outputs: dict[str, Array], axes: Axes, out_specs: dict[str, Any]) -> dict[str, Array]:
    """The outputs of a whole forward from those of one shard: what lacks a letter that is cut is added up.

    Raises:
      UsageError: an output lacks one, and the op does not call it a sum.
    """

    def whole(name: str) -> Array:
        lacking = summed_axes(out_specs[name], axes)
        if not lacking:
            return outputs[name]
        if name not in call.sums:
            raise UsageError(
                f"the output {name} of {call.op} lacks a parallel letter by which the call is cut; "
                "name it in Call.sums, or leave that letter out of Call.parallel"
            )
        return jax.lax.psum(outputs[name], lacking)

    return {name: whole(name) for name in out_specs}


def run_shard(
    call: Call,
    run: Callable[[Any], dict[str, Array]],
    inputs: Any,
    axes: Axes,
    out_specs: dict[str, Any],
) -> dict[str, Array]:
    """One direction of one shard; a gradient of what the shards share is their sum, added in float32.

    Raises:
      UsageError: an output lacks a letter that is cut, and the op does not call it a sum.
    """
    whole = operands_of(inputs)
    part = own_part(call, whole, axes)
    if whole is inputs:
        return summed_outputs(call, run(part), axes, out_specs)
    grads = dict(run(inputs._replace(operands=part)))
    for group, shared in axes.shared.items():
        for name, dim in _with_letter(call, whole, group):
            index = _own_group(whole, name, dim, shared)
            if index is not None and name in grads:
                primal, grad = getattr(whole, name), grads[name]
                nothing = jnp.zeros(primal.shape, grad.dtype)
                grads[name] = jax.lax.dynamic_update_slice_in_dim(nothing, grad, index, dim)

    def total(name: str) -> Array:
        x, names = grads[name], summed_axes(out_specs[name], axes)
        return jax.lax.psum(x.astype(jnp.float32), names).astype(x.dtype) if names else x

    return {name: total(name) for name in out_specs}
