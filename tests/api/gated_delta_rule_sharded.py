"""Calls over sharded batch and heads on four devices; prints each that is right and gathers nothing. A script."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import attn_tune
from tests.api.test_gated_delta_rule import arrays

CALL = functools.partial(attn_tune.gated_delta_rule, return_state=True)


def gradients(given):
    """The output too; the state takes part, so that both have cotangents."""

    def loss(given):
        out, state = CALL(**given)
        return jnp.sum(jnp.sin(out)) + jnp.sum(jnp.cos(state)), out

    return jax.grad(loss, has_aux=True)(given)


def specs_of(given, batch, heads):
    return {n: P(batch, heads) if n == "initial_state" else P(batch, None, heads) for n in given}


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


def main():
    given = arrays()
    wanted = jax.jit(gradients)(given)
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        assert_sharded(lambda given: CALL(**given)[0], given, specs_of(given, "x", "y"), mesh, wanted[1])
    print("explicit")

    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        (found, _), cut = assert_sharded(gradients, given, specs_of(given, "x", "y"), mesh, wanted)
    for name, x in found.items():
        assert x.sharding.is_equivalent_to(cut[name], x.ndim), (name, x.sharding)
    print("automatic")

    manual = functools.partial(CALL, mesh=mesh, in_specs=[P("x", None, "y")] * 3)
    assert_equal(jax.jit(lambda given: manual(**given))(given)[0], wanted[1])
    print("manual")

    packed = functools.partial(CALL, cu_seqlens=jnp.asarray([0, 5, 5, 20]))
    given = arrays(batch=1) | {"initial_state": arrays(batch=3)["initial_state"]}
    wanted = jax.jit(lambda given: packed(**given))(given)
    assert_sharded(lambda given: packed(**given), given, specs_of(given, None, "y"), mesh, wanted)
    print("packed")


if __name__ == "__main__":
    main()
