"""Updates of sharded caches on two devices; prints what was cut of each that is right and gathers nothing. A script."""

import dataclasses
import functools

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from attn_tune.api.serving.paged_append import paged_append
from attn_tune.ops.paged_append.features import samples
from attn_tune.ops.paged_append.inputs import make_inputs
from tests.api.sharded_cases import asked_for
from tests.kernels.paged_append.numpy_append import assert_right


def main():
    for name, axis_type in asked_for():
        cut = "sequences" if name == "contiguous_even" else "heads"
        problem = samples()[name] if name in samples() else _even()
        operands = jax.jit(functools.partial(make_inputs, problem, "fwd"))(1)
        mesh = jax.make_mesh((2,), ("x",), axis_types=(axis_type,))
        whole = PartitionSpec()
        spec = PartitionSpec(None, None, "x", None) if cut == "heads" else PartitionSpec("x")
        specs = dict.fromkeys(("new_k", "new_v", "k", "v"), spec)
        specs |= {"kv_lens": whole if cut == "heads" else spec}
        specs |= dict.fromkeys(("k_scale", "v_scale"), PartitionSpec(None, None, "x"))
        with jax.set_mesh(mesh):
            placed = operands._replace(
                **{
                    field: jax.device_put(x, NamedSharding(mesh, specs.get(field, whole)))
                    for field, x in operands._asdict().items()
                    if x is not None
                }
            )
            compiled = jax.jit(
                lambda o: paged_append(
                    o.new_k, o.new_v, o.k, o.v, o.kv_lens, o.page_table, k_scale=o.k_scale, v_scale=o.v_scale
                )
            ).lower(placed).compile()  # fmt: skip
            cache = compiled(placed)
        assert "all-gather" not in compiled.as_text()
        assert "x" in tuple(cache.k_pages.sharding.spec), cache.k_pages.sharding
        found = {"k": cache.k_pages, "v": cache.v_pages}
        if problem.kv_scale == "token":
            found |= {"k_scale": cache.k_scale, "v_scale": cache.v_scale}
        assert_right(problem, operands, {key: np.asarray(x) for key, x in found.items()})
        print(f"{name}-{axis_type.name}")


def _even():
    """Sequences that two devices can share."""
    return dataclasses.replace(samples()["contiguous"], batch=6, tokens=18)


if __name__ == "__main__":
    main()
