"""Partition specs that fit: keep some axes, take them from another spec, drop what does not divide."""

from collections.abc import Iterable
from typing import Any

from jax.sharding import Mesh, PartitionSpec

from attn_tune.schema.errors import UsageError


def stable_spec(
    spec: PartitionSpec | None,
    preserved: Iterable[int] | None = None,
    *,
    source: PartitionSpec | None = None,
    mesh: Mesh | None = None,
    shape: tuple[int, ...] | None = None,
) -> PartitionSpec | None:
    """``spec`` with only the ``preserved`` axes partitioned, and only where the array allows it.

    Args:
      spec: None stays None.
      preserved: the axes to keep, None for all; the others become whole.
      source: take the kept axes from this spec instead.
      mesh: needed together with ``shape``; an axis that its mesh axes do not divide evenly becomes whole too.
      shape: the array's shape, needed together with ``mesh``.

    Raises:
      UsageError: an axis that ``spec`` or ``source`` does not have, a mesh axis that does not exist, or only one of
        ``mesh`` and ``shape``.
    """
    if spec is None:
        return None
    entries = list(spec)
    if preserved is not None:
        taken = list(spec if source is None else source)
        kept = set()
        for axis in preserved:
            if not 0 <= axis < min(len(entries), len(taken)):
                raise UsageError(f"axis {axis} is not in {spec if source is None else source}")
            kept.add(axis)
        entries = [taken[i] if i in kept else None for i in range(len(entries))]
    if (mesh is None) != (shape is None):
        raise UsageError("mesh and shape are needed together to fit a spec to an array")
    if mesh is not None and shape is not None:
        if len(entries) > len(shape):
            raise UsageError(f"{spec} has more axes than an array of shape {shape}")
        entries = [e if size % _ways(mesh, e) == 0 else None for e, size in zip(entries, shape, strict=False)]
    return PartitionSpec(*entries)


def _ways(mesh: Mesh, entry: Any) -> int:
    ways = 1
    for name in () if entry is None else entry if isinstance(entry, tuple) else (entry,):
        if name not in mesh.shape:
            raise UsageError(f"mesh has no axis {name!r}; it has {', '.join(map(repr, mesh.shape))}")
        ways *= mesh.shape[name]
    return ways
