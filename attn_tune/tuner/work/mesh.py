"""Meshes of devices for problems that need several, and how their operands are laid out on one."""

import contextlib
from collections.abc import Iterator
from typing import Any

from attn_tune.ops.contract import Op


@contextlib.contextmanager
def mesh_for(op: Op, problem: Any) -> Iterator[Any]:
    """Make the mesh of ``problem``, of the first devices here, the current one; None for a problem of one device."""
    sizes = op.mesh(problem)
    if not sizes:
        yield None
        return
    import jax

    count = op.device_count(problem)
    mesh = jax.make_mesh(
        tuple(sizes.values()),
        tuple(sizes),
        axis_types=(jax.sharding.AxisType.Auto,) * len(sizes),
        devices=jax.devices()[:count],
    )
    with jax.set_mesh(mesh):
        yield mesh


def input_shardings(op: Op, problem: Any, direction: str, mesh: Any, inputs: Any) -> Any:
    """The sharding of each leaf of ``inputs`` (their shapes): an operand's ``partition``, else a copy a device."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    from attn_tune.tuner.work.in_place import leaf_places

    split = {o.name: o.partition for o in op.operands(problem, direction) if o.partition}
    leaves, tree = jax.tree.flatten(inputs)
    specs = [PartitionSpec() for _ in leaves]
    for name, place in leaf_places(inputs, split).items():
        specs[place] = PartitionSpec(*split[name])
    return jax.tree.unflatten(tree, [NamedSharding(mesh, spec) for spec in specs])
