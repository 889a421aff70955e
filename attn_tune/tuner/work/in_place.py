"""Operands that a call updates in place: each call is given its own copy of them, made before the clock runs."""

from collections.abc import Iterable
from typing import Any

from attn_tune.ops.contract import Op
from attn_tune.schema.errors import UsageError


def leaf_places(inputs: Any, names: Iterable[str]) -> dict[str, int]:
    """The place of each of the operands ``names`` among the leaves of ``inputs`` (arrays, or their shapes).

    An operand is the one leaf whose path ends in its name.

    Raises:
      UsageError: no leaf has such a path, or several have.
    """
    wanted = tuple(names)
    if not wanted:
        return {}
    import jax

    leaves = jax.tree_util.tree_flatten_with_path(inputs)[0]
    ends = [_word(path[-1]) if path else "" for path, _ in leaves]
    for name in wanted:
        if ends.count(name) != 1:
            raise UsageError(f"operand {name!r} must be one leaf of the inputs, whose leaves are {', '.join(ends)}")
    return {name: ends.index(name) for name in wanted}


def donated_places(op: Op, problem: Any, direction: str, inputs: Any) -> tuple[int, ...]:
    """The places of the leaves of ``inputs`` that a call of this direction updates in place."""
    return tuple(sorted(leaf_places(inputs, op.in_place(problem, direction)).values()))


def fresh_copies(inputs: Any, places: tuple[int, ...]) -> Any:
    """``inputs`` with copies of the leaves at ``places``, for one call to update."""
    if not places:
        return inputs
    import jax
    import jax.numpy as jnp

    leaves, tree = jax.tree.flatten(inputs)
    for place in places:
        leaves[place] = jnp.copy(leaves[place])
    return jax.tree.unflatten(tree, leaves)


def _word(key: Any) -> str:
    """The word of one step of a path: of a mapping's key, an attribute, or a position."""
    for attribute in ("name", "key", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
