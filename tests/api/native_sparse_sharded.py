"""Native sparse attention over sharded batch and heads on four devices; prints each that is right and not gathered."""

import functools

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import attn_tune

SPEC = P("x", None, "y")


def main():
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, 40, heads, 8)).astype(np.float32) for heads in (4, 2, 2)]
    gates = [rng.random((2, 40, 4)).astype(np.float32) for _ in range(3)]
    blocks = rng.integers(-1, 3, (2, 40, 2, 2)).astype(np.int32)
    call = functools.partial(attn_tune.native_sparse_attention, block_size=16)

    def loss(arrays, blocks, gates):
        branches = dict(zip(("g_slc", "g_cmp", "g_swa"), gates, strict=True))
        out = call(*arrays, blocks, **branches, window_size=5)
        return (out**2).sum(), out

    graded = jax.jit(jax.grad(loss, has_aux=True))
    wanted = graded(arrays, blocks, gates)
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(kind,) * 2)
        with jax.set_mesh(mesh):
            given = jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, SPEC)), (arrays, blocks, gates))  # noqa: B023
            compiled = graded.lower(*given).compile()
            found = compiled(*given)
        assert "all-gather" not in compiled.as_text()
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            assert one.sharding.is_equivalent_to(NamedSharding(mesh, SPEC), one.ndim), one.sharding
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=1e-5)
        print(kind.name)
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    compressed = functools.partial(call, g_cmp=gates[1])
    out = jax.jit(functools.partial(compressed, mesh=mesh, in_specs=(SPEC, SPEC, SPEC)))(*arrays, blocks)
    whole = jax.jit(compressed)(*arrays, blocks)
    np.testing.assert_allclose(np.asarray(out), np.asarray(whole), atol=1e-5)
    print("specs")


if __name__ == "__main__":
    main()
