"""Rules that cut a call of an op over a mesh: an op names the dimensions of its arrays; batch and heads are parallel.

Each array has one letter a dimension. ``b`` (batch), ``n`` (query heads) and ``k`` (key/value heads) are parallel: a
shard computes its own part of them. Every other letter stays whole on each device.
"""

import functools
import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
from jax.sharding import PartitionSpec

from attn_tune.kernels.deferred import varying_axes

_log = logging.getLogger("attn_tune")


class Axes(NamedTuple):
    """Mesh axes of each parallel dimension, outermost first; ``heads`` starts with all of ``kv_heads``.

    If ``heads`` has more axes, several shards along those share a key/value head, and each reads one.
    """

    batch: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    kv_heads: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, each once."""
        return self.batch + self.heads

    @property
    def shared(self) -> tuple[str, ...]:
        """Those along which shards share key/value heads."""
        return self.heads[len(self.kv_heads) :]


class Extent(NamedTuple):
    """The sizes of the parallel dimensions."""

    batch: int
    num_q_heads: int
    num_kv_heads: int


def names_of(entry: Any) -> tuple[str, ...]:
    """The mesh axes of one entry of a partition spec."""
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    return tuple(entry) if isinstance(entry, tuple) else (entry,)


def ways(sizes: Mapping[str, int], names: Iterable[str]) -> int:
    """Into how many parts these mesh axes cut a dimension."""
    return math.prod(sizes[name] for name in names)


def fitting_axes(
    sizes: Mapping[str, int],
    extent: Extent,
    batch: Iterable[tuple[str, ...]],
    heads: Iterable[tuple[str, ...]],
) -> Axes:
    """The axes to cut by: of each dimension's wishes the first that is not empty, as far as it divides evenly.

    Args:
      sizes: of the mesh axes.
      batch, heads: the axes by which the operands are cut already, query first.
    """
    of_batch = _dividing(sizes, next(filter(None, batch), ()), extent.batch)
    wished = tuple(name for name in next(filter(None, heads), ()) if name not in of_batch)
    kv_heads = _dividing(sizes, wished, extent.num_kv_heads)
    shared = _dividing(sizes, wished[len(kv_heads) :], extent.num_q_heads // ways(sizes, kv_heads))
    # Each shard reads one key/value head: as many shards a head, or the heads stay as they are.
    while ways(sizes, shared) % (extent.num_kv_heads // ways(sizes, kv_heads)):
        if not shared:
            break
        shared = shared[:-1]
    return Axes(of_batch, kv_heads + shared, kv_heads)


def _dividing(sizes: Mapping[str, int], names: tuple[str, ...], size: int) -> tuple[str, ...]:
    """The longest leading part of ``names`` that divides ``size``."""
    counts = range(len(names), -1, -1)
    return next(names[:count] for count in counts if size % ways(sizes, names[:count]) == 0)


def spec_of(letters: str, shape: tuple[int, ...], axes: Axes) -> PartitionSpec:
    """The partition spec of one whole array; dimensions of size 1 broadcast and stay whole."""
    of = {"b": axes.batch, "n": axes.heads, "k": axes.kv_heads}
    return PartitionSpec(
        *(
            (of.get(letter) or None) if size > 1 else None
            for letter, size in zip(letters, shape, strict=True)
        )
    )


def specs_of(dims: Mapping[str, str], tree: Any, axes: Axes) -> Any:
    """The partition spec of every array of a pytree; ``dims`` gives the letters by the name of its field."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: spec_of(dims[leaf_name(path)], leaf.shape, axes), tree
    )


def summed_axes(spec: PartitionSpec, axes: Axes) -> tuple[str, ...]:
    """The axes over which the shards' parts of a gradient are added up: those by which its primal is not cut."""
    cut = {name for entry in spec for name in names_of(entry)}
    return tuple(name for name in axes.names if name not in cut)


def leaf_name(path: tuple[Any, ...]) -> str:
    """The last name on a path in a pytree of named tuples and dicts."""
    last = path[-1]
    return last.name if hasattr(last, "name") else last.key


def axes_of_specs(
    op: str,
    sizes: Mapping[str, int],
    extent: Extent,
    specs: Mapping[str, Iterable[Any]],
    dims: Mapping[str, str],
) -> Axes:
    """The axes by which a call is cut, from how its main arrays are cut already, the query first.

    Warns once a process about an array that is cut along a dimension that has to be whole.
    """
    wished: dict[str, list[tuple[str, ...]]] = {"b": [], "n": [], "k": []}
    gathered = []
    for name, spec in specs.items():
        cut = {letter: names_of(entry) for letter, entry in zip(dims[name], spec, strict=False)}
        for letter, names in cut.items():
            wished.setdefault(letter, []).append(names)
        if any(names for letter, names in cut.items() if letter not in "bnk"):
            gathered.append(name)
    if gathered:
        _warn_gathered(op, " and ".join(gathered))
    return fitting_axes(sizes, extent, wished["b"], wished["n"] + wished["k"])


@functools.cache
def _warn_gathered(op: str, arrays: str) -> None:
    _log.warning(
        "%s gathers %s on every device: sharded along its length or head dim; sharded lengths need ring attention, "
        "which this op is not, so shard batch and heads instead",
        op,
        arrays,
    )


def is_partitioned(tree: Any) -> bool | None:
    """Whether XLA will partition a call with these operands; None where only the lowering will know.

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
