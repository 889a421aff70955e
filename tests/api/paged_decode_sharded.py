"""Calls with sharded caches on two devices; prints what was cut of each that is right and gathers nothing. A script."""

import functools

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from attn_tune.api.serving.mla_decode import mla_decode
from attn_tune.api.serving.paged_decode import paged_decode
from attn_tune.ops.paged_decode.features import samples
from attn_tune.ops.paged_decode.inputs import make_inputs
from tests.api.sharded_cases import asked_for
from tests.kernels.paged_decode.dense_numpy import assert_right


def call(problem, o):
    scale, width = problem.scale, problem.v_head_dim
    if problem.layout == "latent":
        q = o.q[..., :width], o.q[..., width:]
        return mla_decode(*q, o.k, o.kv_lens, o.page_table, softmax_scale=scale, return_lse=True)
    return paged_decode(o.q, o.k, o.v, o.kv_lens, o.page_table, softmax_scale=scale, return_lse=True)


def main():
    for name, axis_type in asked_for():
        cut = "sequences" if name == "contiguous_ragged" else "heads"
        problem = samples()[name]
        operands = jax.jit(functools.partial(make_inputs, problem, "fwd"))(1)
        mesh = jax.make_mesh((2,), ("x",), axis_types=(axis_type,))
        whole = PartitionSpec()
        spec = PartitionSpec(None, None, "x", None) if cut == "heads" else PartitionSpec("x")
        cache = whole if name == "latent" else spec
        specs = {"q": spec, "k": cache, "v": cache, "kv_lens": whole if cut == "heads" else spec}
        with jax.set_mesh(mesh):
            placed = operands._replace(
                **{
                    field: jax.device_put(x, NamedSharding(mesh, specs.get(field, whole)))
                    for field, x in operands._asdict().items()
                    if x is not None
                }
            )
            compiled = jax.jit(functools.partial(call, problem)).lower(placed).compile()
            out, lse = compiled(placed)
        assert "all-gather" not in compiled.as_text()
        assert "x" in tuple(out.sharding.spec), out.sharding
        assert_right(problem, operands, {"out": np.asarray(out), "lse": np.asarray(lse)})
        print(f"{name}-{axis_type.name}")


if __name__ == "__main__":
    main()
