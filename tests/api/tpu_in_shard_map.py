"""Forward and gradients within a ``shard_map``, lowered for a TPU; prints how many TPU kernels each has."""

import json

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P

import attn_tune

MESH = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
ARRAYS = [jnp.ones((2, 256, heads, 128), jnp.bfloat16) for heads in (4, 2, 2)]


def attend(q, k, v):
    return attn_tune.flash_attention(q, k, v, causal=True)


def gradient(q, k, v):
    return jax.grad(lambda q: attend(q, k, v).astype(jnp.float32).sum())(q)


def count(function, checks):
    run = jax.shard_map(function, mesh=MESH, in_specs=(P("x"),) * 3, out_specs=P("x"), check_vma=checks)
    return jax.jit(run).trace(*ARRAYS).lower(lowering_platforms=("tpu",)).as_text().count("tpu_custom_call")


print(json.dumps([[count(function, checks) for function in (attend, gradient)] for checks in (True, False)]))
