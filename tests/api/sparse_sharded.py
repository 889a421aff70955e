"""Sparse attention over sharded sequences, queries and heads on four devices; prints what is right. A script."""

import functools

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import attn_tune


def main():
    rng = np.random.default_rng(0)

    def draw(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    arrays = (draw(4, 6, 2, 8), draw(4, 6, 2, 4), draw(4, 10, 12), rng.integers(-1, 10, (4, 6, 5)).astype(np.int32))
    whole = P("x")
    specs = {
        "batch": (P("x"), P("x"), P("x"), P("x")),
        "queries": (P("x", "y"), P("x", "y"), whole, P("x", "y")),
        "heads": (P("x", None, "y"), P("x", None, "y"), whole, P("x")),
    }
    call = functools.partial(attn_tune.sparse_mla, softmax_scale=0.2)
    for name, given in specs.items():
        check(name, call, arrays, given)
    rows = (draw(4, 6, 2, 8), draw(4, 10, 8), draw(4, 6, 2))
    check("indexer", attn_tune.indexer, rows, (P("x", "y"), whole, P("x", "y")))
    select(draw(2, 64, 4, 8), draw(2, 4, 2, 8))


def select(query, pooled):
    """Blocks are selected from whole sequences that explicit axes of a mesh cut."""
    call = functools.partial(attn_tune.select_blocks, num_selected=3, block_size=16)
    wanted = call(query, pooled)
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    for spec in (P(None, "x", "y"), P("x", "y"), P("x", None, None, "y")):
        with jax.set_mesh(mesh):
            found = call(*(jax.device_put(x, NamedSharding(mesh, spec)) for x in (query, pooled)))
        np.testing.assert_array_equal(found, wanted)
    print("blocks")


def check(name, call, arrays, specs):
    wanted = call(*arrays)
    for axis_type in (AxisType.Auto, AxisType.Explicit):
        mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(axis_type,) * 2)
        with jax.set_mesh(mesh):
            put = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(arrays, specs, strict=True)]
            compiled = jax.jit(call).lower(*put).compile()
            found = compiled(*put)
        assert "all-gather" not in compiled.as_text(), name
        assert found.sharding.is_equivalent_to(NamedSharding(mesh, specs[0]), found.ndim), found.sharding
        np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), atol=1e-5)
    print(name)


if __name__ == "__main__":
    main()
