"""A call that is traced when it is lowered: by then it is known which devices run it, and what each of them holds."""

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec


def deferred(function: Callable[[Any], Any], out_types: Any) -> Callable[[Any], Any]:
    """``inputs -> function(inputs)``, where ``function`` is traced at lowering and sees plain local arrays.

    It sees no mesh: neither explicit axes, nor (under ``jax.shard_map``) over which axes its operands vary. Most
    kernels do not declare the latter for their outputs. Every result varies over all axes that an operand varies over.

    Args:
      function: from one pytree of arrays to another.
      out_types: the result as a pytree of ``jax.ShapeDtypeStruct``.
    """
    types, out_tree = jax.tree.flatten(out_types)

    def call(inputs: Any) -> Any:
        leaves, in_tree = jax.tree.flatten(inputs)

        def flat(*leaves: jax.Array) -> list[jax.Array]:
            return jax.tree.leaves(function(jax.tree.unflatten(in_tree, leaves)))

        return jax.tree.unflatten(out_tree, _deferred_p.bind(*leaves, function=flat, types=tuple(types)))

    return call


def varying_axes(tree: Any) -> frozenset[str]:
    """The manual mesh axes over which any array of a pytree varies; empty outside ``shard_map``."""
    types = (jax.typeof(leaf).manual_axis_type for leaf in jax.tree.leaves(tree))
    return frozenset().union(*(kind.varying for kind in types))


def as_varying(tree: Any) -> Any:
    """The same arrays, all varying over every axis that one varies over.

    The transpose adds up over the axes that an array did not vary over: its gradient is that of all shards.
    """
    axes = varying_axes(tree)

    def cast(leaf: Any) -> Any:
        missing = axes - jax.typeof(leaf).manual_axis_type.varying
        return jax.lax.pcast(leaf, tuple(sorted(missing)), to="varying") if missing else leaf

    return jax.tree.map(cast, tree)


_deferred_p = Primitive("attn_tune_deferred")
_deferred_p.multiple_results = True


@functools.partial(jax.jit, static_argnames=("function", "types"))
def _call_jitted(*arrays: jax.Array, function: Callable, types: Any) -> list[jax.Array]:
    return _deferred_p.bind(*arrays, function=function, types=types)


@_deferred_p.def_impl
def _call_eagerly(*arrays: jax.Array, function: Callable, types: Any) -> list[jax.Array]:
    # Under jax.disable_jit the jitted call would come straight back here.
    with jax.disable_jit(False):
        return _call_jitted(*arrays, function=function, types=types)


@_deferred_p.def_abstract_eval
def _output_types(*operands: Any, function: Callable, types: Sequence[Any]) -> list[Any]:
    like = operands[0]
    varying = frozenset().union(*(operand.manual_axis_type.varying for operand in operands))
    return [
        like.update(
            shape=out.shape,
            dtype=out.dtype,
            weak_type=False,
            manual_axis_type=type(like.manual_axis_type)(varying=varying),
            sharding=like.sharding.update(spec=PartitionSpec(*[None] * len(out.shape))),
        )
        for out in types
    ]


def _lower(ctx: Any, *operands: Any, function: Callable, types: Any) -> Any:
    nowhere = AbstractMesh((), ())

    def plain(aval: Any) -> Any:
        spec = PartitionSpec(*[None] * aval.ndim)
        return aval.update(
            manual_axis_type=type(aval.manual_axis_type)(varying=frozenset()),
            sharding=NamedSharding(nowhere, spec),
        )

    def local(*arrays: jax.Array) -> list[jax.Array]:
        with jax.sharding.use_abstract_mesh(nowhere), _without_checks():
            return function(*arrays)

    ctx = ctx.replace(
        avals_in=[plain(aval) for aval in ctx.avals_in],
        avals_out=[plain(aval) for aval in ctx.avals_out],
    )
    return mlir.lower_fun(local, multiple_results=True)(ctx, *operands)


def _without_checks() -> contextlib.AbstractContextManager[Any]:
    """A context in which Pallas does not ask over which axes outputs vary, as in a ``shard_map`` that checks types.

    The kernels of libraries do not say so. JAX has no public name for that setting.
    """
    setting = getattr(sys.modules.get("jax._src.config"), "_check_vma", None)
    return contextlib.nullcontext() if setting is None else setting(False)


mlir.register_lowering(_deferred_p, _lower)
