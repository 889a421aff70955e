"""Block-sparse calls over sharded batch and heads on four devices; prints each that is right and gathers nothing."""

import functools

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import attn_tune
from tests.api.sharded_cases import asked_for

SPEC = P("x", None, "y")


def main():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 40, heads, 8)).astype(np.float32) for heads in (4, 2, 2))
    masks = {"shared": ((1, 1), P()), "both": ((2, 4), P("x", "y"))}
    call = functools.partial(attn_tune.block_sparse_attention, block_size=16, causal=True)

    def loss(q, k, v, blocks):
        out = call(q, k, v, blocks)
        return (out**2).sum(), out

    graded = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))
    for name, kind in asked_for():
        shape, of_mask = masks[name]
        blocks = rng.random((*shape, 3, 3)) < 0.6
        wanted = graded(q, k, v, blocks)
        mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(kind,) * 2)
        with jax.set_mesh(mesh):
            specs = (SPEC, SPEC, SPEC, of_mask)
            given = [jax.device_put(x, NamedSharding(mesh, s)) for x, s in zip((q, k, v, blocks), specs, strict=True)]
            compiled = graded.lower(*given).compile()
            found = compiled(*given)
        assert "all-gather" not in compiled.as_text()
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            assert one.sharding.is_equivalent_to(NamedSharding(mesh, SPEC), one.ndim), one.sharding
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=1e-5)
        print(f"{name}-{kind.name}")
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    out = call(q, k, v, blocks, mesh=mesh, in_specs=(SPEC, SPEC, SPEC))
    np.testing.assert_allclose(np.asarray(out), np.asarray(wanted[1]), atol=1e-5)
    print("specs")


if __name__ == "__main__":
    main()
