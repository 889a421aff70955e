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

from attn_tune.kernels.deferred import deferred
from attn_tune.kernels.parallel import (
    Axes,
    Extent,
    axes_of_specs,
    leaf_name,
    specs_of,
)


def partitioned(
    whole: Callable[[Any], Any],
    on_shard: Callable[[Any, Axes, Any], Any],
    inputs: Any,
    *,
    op: str,
    dims: Mapping[str, str],
    extent: Extent,
    main: tuple[str, ...],
) -> Any:
    """``whole(inputs)`` where one device runs it; where several do, ``on_shard`` on each, traced while XLA compiles.

    Args:
      on_shard: (inputs of one shard, axes, partition specs of the outputs) to the outputs of that shard.
      op: for the warning when something has to be gathered.
      dims: the letters of every array, by the name of its field.
      main: the names of the arrays that say how the call is cut, the query first.
    """
    call = custom_partitioning(whole)

    def plan(mesh: Any, arguments: Any, results: Any) -> tuple[Axes, Any, Any]:
        """The axes, and the specs of inputs and outputs."""
        (arrays,) = arguments
        # If no operand of the program is on a mesh, its shardings name no axes: everything is gathered.
        specs = {
            leaf_name(path): getattr(leaf.sharding, "spec", ())
            for path, leaf in jax.tree_util.tree_leaves_with_path(arrays)
        }
        specs = {name: specs[name] for name in main}
        axes = axes_of_specs(op, dict(mesh.shape), extent, specs, dims)
        return axes, specs_of(dims, arrays, axes), specs_of(dims, results, axes)

    def partition(mesh: Any, arguments: Any, results: Any) -> Any:
        axes, in_specs, out_specs = plan(mesh, arguments, results)

        if mesh.empty:
            in_shardings, out_shardings = jax.tree.map(
                lambda x: _replicated(x.sharding), (arguments[0], results)
            )
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
        keeps = all(_stays_whole(size, extent.num_kv_heads) for size in mesh.shape.values())
        return _rule(dims, extent, keeps, inputs, jax.eval_shape(whole, inputs))

    call.def_partition(partition, infer_sharding_from_operands=infer, sharding_rule=rule)
    return call(inputs)


def _shardings(mesh: Any, specs: Any) -> Any:
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec),
        specs,
        is_leaf=lambda x: isinstance(x, PartitionSpec),
    )


def _replicated(sharding: Any) -> Any:
    return type(sharding).get_replicated(tuple(sharding.device_set))


def _stays_whole(ways: int, heads: int) -> bool:
    """Whether Shardy never cuts a mesh axis in two over these heads, which no ``NamedSharding`` can say."""
    return heads % ways == 0 or math.gcd(heads, ways) == 1


def _rule(
    dims: Mapping[str, str], extent: Extent, is_grouped: bool, inputs: Any, outputs: Any
) -> SdyShardingRule:
    """Shardy's rule: equal letters are cut alike.

    Query heads are key/value heads (``k``) times a group (``g``), or letters of their own unless ``is_grouped``.
    Letters that have to be whole are in it too: ``partition`` sees what comes in, and says so where it gathers.
    """
    group = extent.num_q_heads // extent.num_kv_heads
    sizes = {}
    unshared = iter(f"one{i}" for i in range(10000))

    def factor(letter: str, size: int) -> str | CompoundFactor:
        if size == 1:
            return next(unshared)
        if letter != "n" or not is_grouped:
            return letter
        if extent.num_kv_heads > 1 and group > 1:
            sizes["g"] = group
            return CompoundFactor("k", "g")
        return "g" if group > 1 else "k"

    def mappings(tree: Any) -> tuple[ArrayMapping, ...]:
        return tuple(
            ArrayMapping(*map(factor, dims[leaf_name(path)], leaf.shape))
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        )

    return SdyShardingRule(mappings(inputs), mappings(outputs), **sizes)
