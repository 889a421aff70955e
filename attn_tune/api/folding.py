"""``vmap`` of a kernel: its custom call has no batching rule, so the mapped axis becomes part of the op's batch."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array

from attn_tune.api.declaration import Call, operands_of
from attn_tune.api.meshes.axes import leaf_name


def fold_vmap(
    call: Call, problem: Any, function: Callable[[Any], dict[str, Array]]
) -> Callable[[Any], dict[str, Array]]:
    """``function`` with a rule for ``vmap``: the mapped axis is folded into the first parallel letter.

    What cannot be folded runs element by element: an operand without that letter which differs per element, an
    operand that the op calls ``unfoldable``, and the gradient of an operand that broadcasts over that letter (it would
    be summed over the mapped axis as well). An axis of size 0 gives empty outputs.
    """
    mapped = custom_vmap(function)

    @mapped.def_vmap
    def rule(axis_size: int, in_batched: Any, inputs: Any) -> Any:
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
        elif _can_fold(call, problem, *(without := [_foldable(call, tree) for tree in (spread, is_mapped)])):
            outputs = jax.tree.map(
                lambda x: x.reshape(axis_size, x.shape[0] // axis_size, *x.shape[1:]),
                mapped(_folded(call, *without)),
            )
        else:
            outputs = jax.lax.map(mapped, spread)
        return outputs, jax.tree.map(lambda _: True, outputs)

    return mapped


def _foldable(call: Call, inputs: Any) -> Any:
    """``inputs``, or any tree like it, without the operands that a folded batch goes without."""
    operands = operands_of(inputs)
    rest = operands._replace(**dict.fromkeys(call.unfolded))
    return rest if operands is inputs else inputs._replace(operands=rest)


def _can_fold(call: Call, problem: Any, spread: Any, is_mapped: Any) -> bool:
    if not call.parallel or call.present(call.unfoldable, operands_of(spread)):
        return False
    letter = call.parallel[0]

    def fits(path: Any, has_axis: bool) -> bool:
        letters = call.letters[leaf_name(path)]
        return letters.startswith(letter) if letter in letters else not has_axis

    if not all(jax.tree.leaves(jax.tree_util.tree_map_with_path(fits, is_mapped))):
        return False
    element = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), spread)
    batch = call.sizes(operands_of(element))[letter]
    return all(
        call.letters[name].startswith(letter) and out.shape[0] == batch
        for name, out in call.output_types(problem, element).items()
    )


def _folded(call: Call, spread: Any, is_mapped: Any) -> Any:
    """The inputs with the mapped axis folded; operands that broadcast stay small where nothing depends on it."""
    letter, operands = call.parallel[0], operands_of(spread)
    element = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), operands)
    batch = call.sizes(element)[letter]
    has_gradients = operands is not spread

    def fold(path: Any, x: Array, has_axis: bool) -> Array:
        name = leaf_name(path)
        if letter not in call.letters[name]:
            return x[0]
        if name in call.broadcast and x.shape[1] == 1:
            if not has_axis and not (has_gradients and name in call.gradients):
                return x[0]
            x = jnp.broadcast_to(x, (x.shape[0], batch, *x.shape[2:]))
        return x.reshape(x.shape[0] * batch, *x.shape[2:])

    return jax.tree_util.tree_map_with_path(fold, spread, is_mapped)
