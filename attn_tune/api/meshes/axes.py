"""The mesh axes by which a call is cut, from how its main operands are cut already.

A shard computes its own part of every parallel letter of the op. Every other letter stays whole on each device.
"""

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
from jax.sharding import PartitionSpec

from attn_tune.api.declaration import Call
from attn_tune.api.meshes.deferred import varying_axes
from attn_tune.schema.logs import log


class Axes(NamedTuple):
    """Mesh axes of each letter that is cut, outermost first; those of a grouped letter start with all of its group's.

    Attributes:
      of: the axes by letter.
      shared: by the letter of a group, the axes along which several shards share one.
      single: the letters of size 1. Only mesh axes of size 1 can cut them, and these cut what broadcasts too.
    """

    of: Mapping[str, tuple[str, ...]]
    shared: Mapping[str, tuple[str, ...]]
    single: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, each once."""
        return tuple(dict.fromkeys(name for names in self.of.values() for name in names))


def names_of(entry: Any) -> tuple[str, ...]:
    """The mesh axes of one entry of a partition spec, or of an ``axis_name``."""
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    return tuple(entry) if isinstance(entry, tuple | list) else (entry,)


def names_in(spec: PartitionSpec) -> set[str]:
    """All mesh axes of a partition spec."""
    return {name for entry in spec for name in names_of(entry)}


def ways(mesh: Mapping[str, int], names: Iterable[str]) -> int:
    """The number of parts into which these axes of a mesh cut a dimension."""
    return math.prod(mesh[name] for name in names)


def axes_by_letter(call: Call, of: Mapping[str, tuple[str, ...]], sizes: Mapping[str, int]) -> Axes:
    """The axes of a call whose letters, of these ``sizes``, are cut like this."""
    shared = {group: of[letter][len(of[group]) :] for letter, group in call.groups.items()}
    return Axes(of, shared, frozenset(letter for letter in of if sizes[letter] == 1))


def fitting_axes(
    call: Call,
    mesh: Mapping[str, int],
    sizes: Mapping[str, int],
    wished: Mapping[str, list[tuple[str, ...]]],
) -> Axes:
    """The axes to cut by: of each letter's wishes the first that cuts anything, as far as it divides evenly.

    Args:
      mesh: the sizes of the mesh axes.
      sizes: the sizes of the letters.
      wished: by letter, the axes by which the main operands are cut already, in their order.
    """
    of: dict[str, tuple[str, ...]] = {}
    for letter in call.parallel:
        taken = {name for names in of.values() for name in names}
        group = call.groups.get(letter)
        wishes = wished.get(letter, []) + (wished.get(group, []) if group else [])
        # An axis of size 1 cuts nothing, and is no reason to gather what another one cuts.
        wishes.sort(key=lambda names: ways(mesh, names) == 1)
        names = tuple(name for name in next(filter(None, wishes), ()) if name not in taken)
        if group is None:
            of[letter] = _dividing(mesh, names, sizes[letter])
            continue
        by_group = _dividing(mesh, names, sizes[group])
        cut = ways(mesh, by_group)
        shared = _dividing(mesh, names[len(by_group) :], sizes[letter] // cut)
        # Each shard reads one group: as many shards a group, or the groups stay as they are.
        while shared and ways(mesh, shared) % (sizes[group] // cut):
            shared = shared[:-1]
        of[letter], of[group] = by_group + shared, by_group
    return axes_by_letter(call, of, sizes)


def _dividing(mesh: Mapping[str, int], names: tuple[str, ...], size: int) -> tuple[str, ...]:
    """The longest leading part of ``names`` that divides ``size``."""
    counts = range(len(names), -1, -1)
    return next(names[:count] for count in counts if size % ways(mesh, names[:count]) == 0)


def spec_of(letters: str, shape: tuple[int, ...], axes: Axes) -> PartitionSpec:
    """The partition spec of one whole array; dimensions that broadcast stay whole."""
    return PartitionSpec(
        *(
            (axes.of.get(letter) or None) if size > 1 or letter in axes.single else None
            for letter, size in zip(letters, shape, strict=True)
        )
    )


def specs_of(call: Call, tree: Any, axes: Axes) -> Any:
    """The partition spec of every array of a pytree."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: spec_of(call.letters[leaf_name(path)], leaf.shape, axes), tree
    )


def summed_axes(spec: PartitionSpec, axes: Axes) -> tuple[str, ...]:
    """The axes over which the shards' parts of a gradient are added up: those by which its primal is not cut."""
    return tuple(name for name in axes.names if name not in names_in(spec))


def leaf_name(path: tuple[Any, ...]) -> str:
    """The last name on a path in a pytree of named tuples and dicts."""
    last = path[-1]
    return last.name if hasattr(last, "name") else last.key


def axes_of_specs(call: Call, mesh: Mapping[str, int], sizes: Mapping[str, int], specs: Mapping[str, Any]) -> Axes:
    """The axes by which a call is cut, from the partition specs of its main operands.

    Warns once a process about an operand that is cut along a dimension that has to be whole.
    """
    wished: dict[str, list[tuple[str, ...]]] = {}
    gathered: dict[str, list[str]] = {}
    for name in call.main:
        for letter, entry in zip(call.letters[name], specs[name], strict=False):
            names = names_of(entry)
            wished.setdefault(letter, []).append(names)
            if ways(mesh, names) > 1 and letter not in call.cut_letters:
                gathered.setdefault(letter, []).append(name)
    for letter, arrays in gathered.items():
        _warn_gathered(call, letter, " and ".join(arrays))
    return fitting_axes(call, mesh, sizes, wished)


@functools.cache
def _warn_gathered(call: Call, letter: str, arrays: str) -> None:
    remedy = call.remedies.get(letter)
    log.warning(
        "%s gathers %s on every device: sharded along the %s%s",
        call.op,
        arrays,
        call.word(letter),
        f"; {remedy}" if remedy else "",
    )


def is_partitioned(tree: Any) -> bool | None:
    """True if XLA will partition a call with these operands; None if only the lowering will know.

    The types of traced arrays carry the mesh that they are on. No mesh is in them where shardings are given to ``jit``
    alone, as ``in_shardings`` of arrays without one. Inside ``shard_map`` nothing is left to partition.
    """
    meshes = [jax.typeof(leaf).sharding.mesh for leaf in jax.tree.leaves(tree)]
    meshes.append(jax.sharding.get_abstract_mesh())
    if varying_axes(tree) or any(mesh.manual_axes for mesh in meshes):
        return False
    if any(mesh.size > 1 for mesh in meshes if not mesh.empty):
        return True
    return None if jax.device_count() > 1 else False
