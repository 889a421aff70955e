"""Merges over sharded queries and heads on four devices; prints each that is right and gathers nothing. A script."""

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

import attn_tune
from tests.api.sharded_cases import asked_for


def main():
    rng = np.random.default_rng(0)
    outs = [rng.standard_normal((4, 3, 2, 8)).astype(np.float32) for _ in range(2)]
    logs = [rng.standard_normal((4, 3, 2)).astype(np.float32) for _ in range(2)]
    wanted = attn_tune.merge_attention(outs, logs)
    specs = {"queries": P("x"), "heads": P(None, None, "y"), "both": P("x", None, "y")}
    for name, axis_type in asked_for():
        spec = specs[name]
        mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(axis_type,) * 2)
        with jax.set_mesh(mesh):
            parts, lses = jax.device_put((outs, logs), NamedSharding(mesh, spec))
            compiled = jax.jit(attn_tune.merge_attention).lower(parts, lses).compile()
            found = compiled(parts, lses)
        assert "all-gather" not in compiled.as_text()
        for one, other in zip(found, wanted, strict=True):
            assert one.sharding.is_equivalent_to(NamedSharding(mesh, spec), one.ndim), one.sharding
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=1e-6)
        print(f"{name}-{axis_type.name}")


if __name__ == "__main__":
    main()
