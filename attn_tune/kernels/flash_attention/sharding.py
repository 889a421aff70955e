"""A call over a device mesh: ``shard_map`` over batch and heads, so that each shard is looked up as what it is.

The mesh is the caller's (``mesh=``), or that of the operands' types, where these say how an array is sharded.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from attn_tune.kernels.cached import cached
from attn_tune.kernels.flash_attention.operands import BackwardInputs, Operands
from attn_tune.kernels.flash_attention.problem import NAME, Problem
from attn_tune.kernels.flash_attention.shards import DIMS, MAIN, extent_of, own_part
from attn_tune.kernels.parallel import Axes, axes_of_specs, names_of, specs_of, ways
from attn_tune.schema.errors import UnsupportedError, UsageError


class Inputs(NamedTuple):
    """The arrays that one call reads. ``largest_sinks``, one a query head, is for outputs that are not normalised."""

    operands: Operands
    largest_sinks: Float[Array, " N"] | None = None


# To ``(out, lse)``.
type Attend = Callable[[Inputs], tuple[Array, Array | None]]


def sharded(
    attend: Attend,
    problem: Problem,
    inputs: Inputs,
    *,
    mesh: Mesh,
    in_specs: Sequence[PartitionSpec | None],
    out_specs: PartitionSpec | None = None,
) -> tuple[Array, Any]:
    """``attend(inputs)`` on each shard, with each array under its spec.

    ``in_specs`` starts with the specs of query, key and value; those of everything else follow from them. The
    dropout words are moved by each shard's place, so that it drops the weights that the whole call would drop.

    Raises:
      UsageError: specs that do not fit the arrays, the mesh or one another.
      UnsupportedError: a sharded length or head dim, or key/value heads sharded differently from query heads.
    """
    axes = _axes(problem, mesh, in_specs)
    out_spec = PartitionSpec(axes.batch or None, None, axes.heads or None, None)
    if out_specs is not None and _named(_padded(out_specs, "out_specs")) != _named(out_spec):
        raise UsageError(f"out_specs must be that of the query, {out_spec}, got {out_specs}")
    return _mapped(attend, inputs, mesh, axes)


def sharded_by_types(attend: Attend, problem: Problem, inputs: Inputs) -> Any:
    """``attend(inputs)``, on each shard where the arrays' types say how they are sharded (explicit mesh axes).

    Lengths and head dims that are sharded are gathered, with one warning; the results are sharded like the query.
    """
    if explicit_mesh(inputs) is None:
        return attend(inputs)
    return _typed(attend, problem)(inputs)


@cached
def _typed(attend: Attend, problem: Problem) -> Callable[[Inputs], tuple[Array, Array | None]]:
    def run(inputs: Inputs) -> tuple[Array, Array | None]:
        operands = inputs.operands
        mesh, axes = _axes_of_types(problem, operands)
        results = _mapped(attend, inputs, mesh, axes)
        length = names_of(jax.typeof(operands.q).sharding.spec[1])
        if not length:
            return results
        batch, heads = (
            tuple(name for name in names if name not in length) or None
            for names in (axes.batch, axes.heads)
        )
        out, lse = results
        out = _reshard(out, mesh, PartitionSpec(batch, length, heads, None))
        return out, lse if lse is None else _reshard(lse, mesh, PartitionSpec(batch, heads, length))

    # Outside of a trace the types have no devices; within one they need none.
    return jax.jit(run)


def sharded_run(
    on_shard: Callable[[Any, Axes, Any], Any], problem: Problem, inputs: Any, out_types: Any
) -> Any:
    """``on_shard`` on each shard of one direction's inputs, which are sharded along explicit mesh axes."""
    operands = inputs.operands if isinstance(inputs, BackwardInputs) else inputs
    mesh, axes = _axes_of_types(problem, operands)
    in_specs, out_specs = (specs_of(DIMS, tree, axes) for tree in (inputs, out_types))
    return jax.shard_map(
        lambda inputs: on_shard(inputs, axes, out_specs),
        mesh=mesh,
        in_specs=(in_specs,),
        out_specs=out_specs,
        axis_names=set(mesh.explicit_axes),
        check_vma=False,
    )(jax.tree.map(lambda x, spec: _reshard(x, mesh, spec), inputs, in_specs))


def explicit_mesh(tree: Any) -> Any:
    """The mesh along whose explicit axes some array of a pytree is sharded; None for none."""
    kinds = (jax.typeof(leaf).sharding for leaf in jax.tree.leaves(tree))
    return next((kind.mesh for kind in kinds if any(map(names_of, kind.spec))), None)


def _axes_of_types(problem: Problem, operands: Operands) -> tuple[Any, Axes]:
    mesh = explicit_mesh(operands)
    specs = {name: tuple(jax.typeof(getattr(operands, name)).sharding.spec) for name in MAIN}
    return mesh, axes_of_specs(NAME, dict(mesh.shape), extent_of(problem), specs, DIMS)


def _reshard(x: Array, mesh: Any, spec: PartitionSpec) -> Array:
    return jax.sharding.reshard(x, NamedSharding(mesh, spec))


def _mapped(attend: Attend, inputs: Inputs, mesh: Any, axes: Axes) -> tuple[Array, Array | None]:
    specs = specs_of(DIMS, inputs, axes)
    if mesh.explicit_axes:
        inputs = jax.tree.map(lambda x, spec: _reshard(x, mesh, spec), inputs, specs)

    def local(inputs: Inputs) -> tuple[Array, Array | None]:
        return attend(inputs._replace(operands=own_part(inputs.operands, axes)))

    return jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(specs,),
        out_specs=(
            PartitionSpec(axes.batch or None, None, axes.heads or None, None),
            PartitionSpec(axes.batch or None, axes.heads or None, None),
        ),
        # The transpose of shard_map then adds up the gradients of what is replicated (bias, sinks, single KV heads).
        check_vma=False,
    )(inputs)


def _axes(problem: Problem, mesh: Mesh, in_specs: Sequence[PartitionSpec | None]) -> Axes:
    if isinstance(in_specs, PartitionSpec):
        in_specs = (in_specs,) * 3
    if len(in_specs) < 3:
        raise UsageError(
            f"in_specs must start with those of query, key and value, got {len(in_specs)}"
        )
    query, key, value = (
        _padded(spec, f"in_specs[{i}]") for i, spec in enumerate(tuple(in_specs)[:3])
    )
    for name, spec in (("query", query), ("key", key), ("value", value)):
        if spec[1] is not None:
            raise UnsupportedError(
                f"{name} is sharded along its length ({spec[1]!r}); that needs ring attention, which this op is not"
            )
        if spec[3] is not None:
            raise UnsupportedError(
                f"{name} is sharded along its head dim ({spec[3]!r}); shard heads instead"
            )
    if key != value or query[0] != key[0]:
        raise UsageError(
            f"key and value must share one spec, and the query's batch axis, got {tuple(in_specs)[:3]}"
        )
    # Without its own share of key/value heads a shard would count its groups from the wrong head.
    if query[2] != key[2] and not (key[2] is None and problem.num_kv_heads == 1):
        raise UnsupportedError(
            f"query heads are sharded along {query[2]!r} and key/value heads along {key[2]!r}; they must be the same "
            "(only a single key/value head may stay whole)"
        )
    for axis, size, what in (
        (query[0], problem.batch, "batch"),
        (query[2], problem.num_q_heads, "query heads"),
        (key[2], problem.num_kv_heads, "key/value heads"),
    ):
        parts = _axis_size(mesh, axis)
        if size % parts:
            raise UsageError(
                f"{what} ({size}) cannot be split {parts} ways along mesh axis {axis!r}"
            )
    return Axes(names_of(query[0]), names_of(query[2]), names_of(key[2]))


def _padded(spec: PartitionSpec | None, name: str) -> tuple[Any, ...]:
    entries = () if spec is None else tuple(spec)
    if len(entries) > 4:
        raise UsageError(f"{name} has {len(entries)} axes, the array has 4")
    return entries + (None,) * (4 - len(entries))


def _named(spec: Iterable[Any]) -> list[tuple[str, ...]]:
    return [names_of(entry) for entry in spec]


def _axis_size(mesh: Mesh, axis: Any) -> int:
    for name in names_of(axis):
        if name not in mesh.shape:
            raise UsageError(
                f"mesh has no axis {name!r}; it has {', '.join(map(repr, mesh.shape))}"
            )
    return ways(mesh.shape, names_of(axis))
