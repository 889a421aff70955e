"""A call that XLA partitions: under ``jit`` with sharded operands each device runs its own part, looked up as such."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.experimental.custom_partitioning import (
    ArrayMapping,
    CompoundFactor,
    SdyShardingRule,
    custom_partitioning,
)
from jax.sharding import NamedSharding, PartitionSpec

from attn_tune.api.declaration import Call, operands_of
from attn_tune.api.meshes.axes import Axes, axes_of_specs, leaf_name, specs_of
from attn_tune.api.meshes.deferred import deferred


def partitioned(
    call: Call,
    whole: Callable[[Any], Any],
    on_shard: Callable[[Any, Axes, Any], Any],
    inputs: Any,
) -> Any:
    """``whole(inputs)`` where one device runs it; where several do, ``on_shard`` on each, traced while XLA compiles.

    Args:
      on_shard: (inputs of one shard, axes, partition specs of the outputs) to the outputs of that shard.
    """
    if jax.config.jax_disable_jit:  # there is no program that XLA could partition
        return whole(inputs)
    cut = custom_partitioning(whole)
    sizes = call.sizes(operands_of(inputs))
    # The rule outlives the trace, and may hold none of its arrays.
    types = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), inputs)

    def plan(mesh: Any, arguments: Any, results: Any) -> tuple[Axes, Any, Any]:
        """The axes, and the specs of inputs and outputs."""
        (arrays,) = arguments
        # If no operand of the program is on a mesh, its shardings name no axes: everything is gathered.
        specs = {
            leaf_name(path): getattr(leaf.sharding, "spec", ())
            for path, leaf in jax.tree_util.tree_leaves_with_path(arrays)
        }
        axes = axes_of_specs(call, dict(mesh.shape), sizes, specs)
        return axes, specs_of(call, arrays, axes), specs_of(call, results, axes)

    def partition(mesh: Any, arguments: Any, results: Any) -> Any:
        axes, in_specs, out_specs = plan(mesh, arguments, results)

        if mesh.empty:
            in_shardings, out_shardings = jax.tree.map(lambda x: _replicated(x.sharding), (arguments[0], results))
        else:
            in_shardings, out_shardings = _shardings(mesh, in_specs), _shardings(mesh, out_specs)
        types = jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(sharding.shard_shape(x.shape), x.dtype),
            results,
            out_shardings,
        )
        # XLA compiles within the caller's mesh, which JAX would take for that of the shard's arrays.
        local = deferred(lambda inputs: on_shard(inputs, axes, out_specs), types)
        return mesh, local, out_shardings, (in_shardings,)

    def infer(mesh: Any, arguments: Any, results: Any) -> Any:
        return _shardings(mesh, plan(mesh, arguments, results)[2])

    def rule(mesh: Any, operand_types: Any, result_types: Any) -> SdyShardingRule:
        grouped = {
            letter
            for letter, group in call.groups.items()
            if all(_stays_whole(size, sizes[group]) for size in mesh.shape.values())
        }
        return _rule(call, sizes, grouped, types, jax.eval_shape(whole, types))

    cut.def_partition(partition, infer_sharding_from_operands=infer, sharding_rule=rule)
    return cut(inputs)


def _shardings(mesh: Any, specs: Any) -> Any:
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec),
        specs,
        is_leaf=lambda x: isinstance(x, PartitionSpec),
    )


def _replicated(sharding: Any) -> Any:
    return type(sharding).get_replicated(tuple(sharding.device_set))


def _stays_whole(ways: int, size: int) -> bool:
    """True if Shardy never cuts a mesh axis in two over a letter of this size, which no ``NamedSharding`` can say."""
    return size % ways == 0 or math.gcd(size, ways) == 1


def _rule(call: Call, sizes: Mapping[str, int], grouped: set[str], inputs: Any, outputs: Any) -> SdyShardingRule:
    """Shardy's rule: equal letters are cut alike.

    A letter in ``grouped`` is its group's letter times the members of one group. Letters that have to be whole are in
    the rule too: ``partition`` sees what comes in, and says so where it gathers.
    """
    factors: dict[str, Any] = {}
    unshared = iter(f"one{i}" for i in range(10000))

    def factor(letter: str, size: int) -> str | CompoundFactor:
        if size == 1:
            return next(unshared)
        if letter not in grouped:
            return letter
        group = call.groups[letter]
        members, in_group = sizes[letter] // sizes[group], f"in{letter}"
        if sizes[group] > 1 and members > 1:
            factors[in_group] = members
            return CompoundFactor(group, in_group)
        return in_group if members > 1 else group

    def mappings(tree: Any) -> tuple[ArrayMapping, ...]:
        return tuple(
            ArrayMapping(*map(factor, call.letters[leaf_name(path)], leaf.shape))
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        )

    return SdyShardingRule(mappings(inputs), mappings(outputs), **factors)
