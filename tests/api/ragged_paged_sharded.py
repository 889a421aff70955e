"""Ragged calls over sharded heads on two devices; prints each that is right and gathers nothing. A script."""

import functools

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from attn_tune.api.serving.ragged_paged import ragged_paged
from attn_tune.ops.ragged_paged.features import samples
from attn_tune.ops.ragged_paged.inputs import make_inputs
from tests.api.sharded_cases import asked_for
from tests.kernels.ragged_paged.dense_numpy import assert_right


def main():
    for name, axis_type in asked_for():
        problem = samples()[name]
        operands = jax.jit(functools.partial(make_inputs, problem, "fwd"))(1)
        mesh = jax.make_mesh((2,), ("x",), axis_types=(axis_type,))
        cache = PartitionSpec(None, None, "x", None)
        specs = {"q": PartitionSpec(None, "x", None), "k": cache, "v": cache}
        with jax.set_mesh(mesh):
            placed = operands._replace(
                **{
                    field: jax.device_put(x, NamedSharding(mesh, specs.get(field, PartitionSpec())))
                    for field, x in operands._asdict().items()
                    if x is not None
                }
            )
            function = functools.partial(ragged_paged, return_lse=True)
            given = (placed.q, placed.k, placed.v, placed.kv_lens, placed.cu_q_lens, placed.page_table)
            compiled = jax.jit(function).lower(*given).compile()
            out, lse = compiled(*given)
        assert "all-gather" not in compiled.as_text()
        assert "x" in tuple(out.sharding.spec), out.sharding
        assert_right(problem, operands, {"out": np.asarray(out), "lse": np.asarray(lse)})
        print(f"{name}-{axis_type.name}")


if __name__ == "__main__":
    main()
