"""Calls over sharded batch and heads on four devices; prints each that is right and gathers nothing. A script.

python -m tests.api.linear_sharded gated_delta_rule explicit automatic manual packed pool
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from tests.api.linear_arrays import arrays, call


def gradients(function, given):
    """The output too; the state takes part, so that both have cotangents."""

    def loss(given):
        out, state = function(**given)
        return jnp.sum(jnp.sin(out)) + jnp.sum(jnp.cos(state)), out

    return jax.grad(loss, has_aux=True)(given)


def specs_of(given, batch, heads):
    def spec(name, x):
        return P(heads) if x.ndim == 1 else P(batch, heads) if name == "initial_state" else P(batch, None, heads)

    return {name: spec(name, x) for name, x in given.items()}


def assert_sharded(function, given, specs, mesh, wanted):
    cut = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    placed = {name: jax.device_put(x, cut[name]) for name, x in given.items()}
    compiled = jax.jit(function).lower(placed).compile()
    assert "all-gather" not in compiled.as_text()
    found = compiled(placed)
    assert_equal(found, wanted)
    return found, cut


def assert_equal(found, wanted):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-5)


def explicit(function, given, wanted):
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        assert_sharded(lambda given: function(**given)[0], given, specs_of(given, "x", "y"), mesh, wanted[1])


def automatic(function, given, wanted):
    mesh = automatic_mesh()
    with jax.set_mesh(mesh):
        ways = functools.partial(gradients, function)
        (found, _), cut = assert_sharded(ways, given, specs_of(given, "x", "y"), mesh, wanted)
    for name, x in found.items():
        assert x.sharding.is_equivalent_to(cut[name], x.ndim), (name, x.sharding)


def manual(function, given, wanted):
    cut = functools.partial(function, mesh=automatic_mesh(), in_specs=[P("x", None, "y")] * 3)
    assert_equal(jax.jit(lambda given: cut(**given))(given)[0], wanted[1])


def packed(function, given, wanted):
    ends = functools.partial(function, cu_seqlens=jnp.asarray([0, 5, 5, 20]))
    states = jnp.concatenate([given["initial_state"]] * 2)[:3]
    given = {n: x[:1] if x.ndim > 1 else x for n, x in given.items()} | {"initial_state": states}
    whole = jax.jit(lambda given: ends(**given))(given)
    assert_sharded(lambda given: ends(**given), given, specs_of(given, None, "y"), automatic_mesh(), whole)


def pool(function, given, wanted):
    over = functools.partial(function, slots=jnp.asarray([3, 1], jnp.int32))
    given = given | {"initial_state": jnp.concatenate([given["initial_state"]] * 2)}
    whole = jax.jit(lambda given: over(**given))(given)
    assert_sharded(lambda given: over(**given), given, specs_of(given, None, "y"), automatic_mesh(), whole)


def automatic_mesh():
    return jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def main():
    kind, *names = sys.argv[1:]
    function, given = functools.partial(call(kind), return_state=True), arrays(kind)
    wanted = jax.jit(functools.partial(gradients, function))(given)
    for name in names:
        globals()[name](function, given, wanted)
        print(name)


if __name__ == "__main__":
    main()
