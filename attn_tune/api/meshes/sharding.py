"""A call over a device mesh: ``shard_map`` over the parallel letters, so that each shard is looked up as what it is.

The mesh is the caller's (``mesh=``), or that of the operands' types, where these say how an array is sharded.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from attn_tune.api.declaration import Call, operands_of
from attn_tune.api.meshes.axes import (
    Axes,
    axes_by_letter,
    axes_of_specs,
    leaf_name,
    names_in,
    names_of,
    spec_of,
    specs_of,
    ways,
)
from attn_tune.api.meshes.deferred import varying_axes
from attn_tune.api.meshes.shards import own_part, summed_outputs
from attn_tune.ops.cached import cached
from attn_tune.schema.errors import UnsupportedError, UsageError, shown


class Inputs(NamedTuple):
    """The arrays that one call reads.

    Attributes:
      operands: those of the op.
      extra: what the call reads after its kernels, by name; the names are letters of the op's ``Call`` too.
    """

    operands: Any
    extra: dict[str, Array]


type Outputs = dict[str, Array]
# One call without its arrays; equal to any other of the same.
type Run = Callable[[Inputs], Outputs]


def sharded(
    call: Call,
    run: Run,
    problem: Any,
    inputs: Inputs,
    *,
    mesh: Mesh,
    in_specs: Sequence[PartitionSpec | None],
    out_specs: PartitionSpec | None = None,
) -> Outputs:
    """``run(inputs)`` on each shard, with each array under its spec.

    ``in_specs`` starts with the specs of the main operands; those of everything else follow from them.

    Raises:
      UsageError: specs that do not fit the arrays, the mesh or one another.
      UnsupportedError: a letter is sharded that is not parallel, or groups are sharded unlike their members.
    """
    if kept := call.present(call.indivisible, inputs.operands):
        raise UnsupportedError(
            f"{call.op} cannot be cut over a mesh with {' and '.join(kept)}; leave out mesh and in_specs"
        )
    axes = _axes_of_arguments(call, inputs.operands, mesh, in_specs)
    name, out = next(iter(call.outputs(problem, inputs.operands).items()))
    if out_specs is not None:
        # A mesh axis of size 1 is welcome on any dimension.
        wanted = spec_of(call.letters[name], (2,) * len(out.shape), axes)
        given = _padded(mesh, out_specs, "out_specs", len(out.shape))
        if [_cut(mesh, entry) for entry in given] != [_cut(mesh, entry) for entry in wanted]:
            raise UsageError(f"out_specs must be that of the operands, {wanted} for {name}, got {out_specs}")
    return _mapped(call, run, problem, inputs, mesh, axes)


def sharded_by_types(call: Call, run: Run, problem: Any, inputs: Inputs) -> Outputs:
    """``run(inputs)``, on each shard where the arrays' types say how they are sharded (explicit mesh axes).

    Letters that have to be whole are gathered, with one warning; the results are sharded like the first operand.
    """
    if explicit_mesh(inputs) is None or call.present(call.indivisible, inputs.operands):
        return run(inputs)
    return _typed(call, run, problem)(inputs)


@cached
def _typed(call: Call, run: Run, problem: Any) -> Run:
    def over_mesh(inputs: Inputs) -> Outputs:
        operands = inputs.operands
        mesh, axes = _axes_of_types(call, operands)
        results = _mapped(call, run, problem, inputs, mesh, axes)
        first = next(iter(call.main))
        entries = jax.typeof(getattr(operands, first)).sharding.spec
        gathered = {
            letter: names_of(entry)
            for letter, entry in zip(call.letters[first], entries, strict=False)
            if letter not in call.cut_letters and names_of(entry)
        }
        return {name: _resharded(x, mesh, call.letters[name], axes, gathered) for name, x in results.items()}

    # Outside of a trace the types have no devices; within one they need none.
    return jax.jit(over_mesh)


def _resharded(x: Array, mesh: Any, letters: str, axes: Axes, gathered: dict[str, tuple[str, ...]]) -> Array:
    """A result sharded as the first operand was, whose letters ``gathered`` were gathered."""
    again = {letter: names for letter, names in gathered.items() if letter in letters}
    if not again:
        return x
    taken = {name for names in again.values() for name in names}
    of = {letter: tuple(name for name in names if name not in taken) for letter, names in axes.of.items()}
    return _reshard(x, mesh, spec_of(letters, x.shape, axes._replace(of={**of, **again}, shared={})))


def sharded_run(call: Call, on_shard: Callable[[Any, Axes, Any], Any], problem: Any, inputs: Any) -> Outputs:
    """``on_shard`` on each shard of one direction's inputs, which are sharded along explicit mesh axes."""
    mesh, axes = _axes_of_types(call, operands_of(inputs))
    out_types = call.output_types(problem, inputs)
    in_specs, out_specs = (specs_of(call, tree, axes) for tree in (inputs, out_types))
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


def explicit_axes(tree: Any) -> list[str]:
    """The explicit mesh axes along which any array of a pytree is sharded, sorted."""
    return sorted(set[str]().union(*(names_in(jax.typeof(leaf).sharding.spec) for leaf in jax.tree.leaves(tree))))


def _axes_of_types(call: Call, operands: Any) -> tuple[Any, Axes]:
    mesh = explicit_mesh(operands)
    specs = {name: tuple(jax.typeof(getattr(operands, name)).sharding.spec) for name in call.main}
    return mesh, axes_of_specs(call, dict(mesh.shape), call.sizes(operands), specs)


def _reshard(x: Array, mesh: Any, spec: PartitionSpec) -> Array:
    return jax.sharding.reshard(x, NamedSharding(mesh, spec))


def _mapped(call: Call, run: Run, problem: Any, inputs: Inputs, mesh: Any, axes: Axes) -> Outputs:
    specs = specs_of(call, inputs, axes)
    out_specs = specs_of(call, call.outputs(problem, inputs.operands), axes)
    if mesh.explicit_axes:
        inputs = jax.tree.map(lambda x, spec: _reshard(x, mesh, spec), inputs, specs)
    _check_shared(call, inputs, specs)

    def local(inputs: Inputs) -> Outputs:
        outputs = run(inputs._replace(operands=own_part(call, inputs.operands, axes)))
        return summed_outputs(call, outputs, axes, out_specs)

    return jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(specs,),
        out_specs=out_specs,
        # The transpose of shard_map then adds up the gradients of what is replicated.
        check_vma=False,
    )(inputs)


def _check_shared(call: Call, inputs: Inputs, specs: Inputs) -> None:
    """Check that under another ``shard_map`` no array is shared by devices of either: its gradient would not be summed.

    Raises:
      UnsupportedError: one is.
    """
    if call.backward_inputs is None or not (outer := varying_axes(inputs)):
        return
    cut = set[str]().union(*map(names_in, jax.tree.leaves(specs)))
    shared = [
        call.main.get(name := leaf_name(path), name)
        for (path, x), spec in zip(jax.tree.leaves_with_path(inputs), jax.tree.leaves(specs), strict=True)
        if jnp.issubdtype(x.dtype, jnp.inexact) and not (cut <= names_in(spec) and outer <= varying_axes(x))
    ]
    if shared:
        others, left_out = (", ".join(sorted(names)) for names in (outer, cut))
        raise UnsupportedError(
            f"devices share {' and '.join(shared)}, whose gradient is not added up under a jax.shard_map over {others} "
            f"that leaves out explicit axes: name {left_out} in its axes and specs too"
        )


def _axes_of_arguments(call: Call, operands: Any, mesh: Mesh, in_specs: Sequence[PartitionSpec | None]) -> Axes:
    publics = list(call.main.values())
    if isinstance(in_specs, PartitionSpec):
        in_specs = (in_specs,) * len(publics)
    if not isinstance(in_specs, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"in_specs must be a sequence of specs, got {shown(in_specs)}")
    if len(in_specs) < len(publics):
        raise UsageError(f"in_specs must start with those of {', '.join(publics)}, got {len(in_specs)}")
    entries: dict[str, tuple[str, Any]] = {}
    for i, (name, public) in enumerate(call.main.items()):
        letters = call.letters[name]
        padded = _padded(mesh, in_specs[i], f"in_specs[{i}]", len(letters))
        for letter, entry in zip(letters, padded, strict=True):
            if letter not in call.cut_letters:
                _check_whole(call, mesh, public, letter, entry)
                continue
            other, first = entries.setdefault(letter, (public, entry))
            if first == entry:
                continue
            entries[letter] = other, _cut(mesh, first)
            if _cut(mesh, first) != _cut(mesh, entry):
                raise UsageError(
                    f"{other} and {public} must be sharded alike along the {call.word(letter)}, "
                    f"got {first!r} and {entry!r}"
                )
    sizes, of = call.sizes(operands), {letter: names_of(entry) for letter, (_, entry) in entries.items()}
    if any(of[letter] != of[group] for letter, group in call.groups.items()):
        of = {letter: _cut(mesh, names) for letter, names in of.items()}
    for letter, group in call.groups.items():
        # Without its own share of the groups a shard would count its entries from the wrong group.
        if of[letter] != of[group] and (of[group] or sizes[group] > 1):
            raise UnsupportedError(
                f"{call.word(letter)} are sharded along {_shown(of[letter])} and {call.word(group)} along "
                f"{_shown(of[group])}; they must be the same "
                f"(only a single one of the {call.word(group)} may stay whole)"
            )
    for letter in call.cut_letters:
        parts = _axis_size(mesh, of[letter])
        if sizes[letter] % parts:
            raise UsageError(
                f"{call.word(letter)} ({sizes[letter]}) cannot be split {parts} ways along mesh axis "
                f"{_shown(of[letter])}"
            )
    return axes_by_letter(call, {letter: of[letter] for letter in call.cut_letters}, sizes)


def _check_whole(call: Call, mesh: Mesh, public: str, letter: str, entry: Any) -> None:
    if _axis_size(mesh, entry) == 1:
        return
    remedy = call.remedies.get(letter) or "it has to be whole on each device"
    raise UnsupportedError(f"{public} is sharded along its {call.word(letter)} ({entry!r}); {remedy}")


def _padded(mesh: Mesh, spec: PartitionSpec | None, name: str, rank: int) -> tuple[Any, ...]:
    # Callers may pass anything, such as shardings.
    if not isinstance(spec, tuple | list | PartitionSpec | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{name} must be a jax.sharding.PartitionSpec or None, got {shown(spec)}")
    entries = () if spec is None else tuple(spec)
    if len(entries) > rank:
        raise UsageError(f"{name} has {len(entries)} axes, the array has {rank}")
    names = [one for entry in entries for one in _cut(mesh, entry)]
    if twice := next((one for one in names if names.count(one) > 1), None):
        raise UsageError(f"{name} names the mesh axis {twice!r} twice: {spec}")
    return entries + (None,) * (rank - len(entries))


def _cut(mesh: Mesh, entry: Any) -> tuple[str, ...]:
    """The mesh axes of an entry of a spec, but for those of size 1. Unknown ones are among them."""
    return tuple(name for name in names_of(entry) if mesh.shape.get(name) != 1)


def _shown(names: tuple[str, ...]) -> str:
    """Mesh axes as a spec has them."""
    return repr(names[0] if len(names) == 1 else names or None)


def _axis_size(mesh: Mesh, axis: Any) -> int:
    for name in names_of(axis):
        if name not in mesh.shape:
            raise UsageError(f"mesh has no axis {name!r}; it has {', '.join(map(repr, mesh.shape))}")
    return ways(mesh.shape, names_of(axis))
