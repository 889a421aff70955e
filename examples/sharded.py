"""Attention over a mesh of eight devices: batch and heads stay where they are, and nothing is gathered.

python examples/sharded.py           (eight CPU devices, if there are no others)
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

import attn_tune

mesh = jax.make_mesh((4, 2), ("data", "model"))
sharding = NamedSharding(mesh, PartitionSpec("data", None, "model", None))
shape = (8, 128, 4, 32)
query, key, value = (
    jax.device_put(jax.random.normal(jax.random.key(seed), shape, jnp.float32), sharding) for seed in range(3)
)

attend = jax.jit(lambda q, k, v: attn_tune.flash_attention(q, k, v, causal=True))
out = attend(query, key, value)
program = attend.lower(query, key, value).compile().as_text()
print("out is sharded as the query:", out.sharding.is_equivalent_to(sharding, out.ndim))
print("all-gathers in the program:", program.count("all-gather("))
