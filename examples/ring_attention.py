"""A layer that learns on eight devices, four to a sequence: zigzag shards, rotary embeddings, rings both ways.

python examples/ring_attention.py           (eight CPU devices, if there are no others)
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import attn_tune

N, K, H, WIDTH = 4, 2, 16, 32
devices = max(jax.device_count() // 2, 1)
batch, length = jax.device_count() // devices, 16 * devices
mesh = jax.make_mesh((batch, devices), ("data", "cp"), axis_types=(AxisType.Auto,) * 2)
tokens = P("data", "cp")


def rotate(x, positions):
    """Rotary embeddings of tokens at these positions of the sequence."""
    angles = positions[:, None, None] * 10000.0 ** (-jnp.arange(H // 2) / (H // 2))
    first, second = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def layer(weights, x, attend, positions):
    """Attention of ``x`` [B, T, WIDTH], with ``attend`` of queries, keys and values."""
    qkv = (x @ weights["in"]).reshape(*x.shape[:2], N + 2 * K, H)
    q, k, v = jnp.split(qkv, (N, N + K), axis=2)
    out = attend(rotate(q, positions), rotate(k, positions), v)
    return x + out.reshape(*x.shape[:2], N * H) @ weights["out"]


def on_shard(weights, x, target):
    """The loss of all tokens, from those of one device."""

    def attend(q, k, v):
        return attn_tune.ring_attention(q, k, v, axis_name="cp", causal=True, strategy="ring")

    made = layer(weights, x, attend, attn_tune.local_positions(x.shape[1], "cp"))
    return jax.lax.pmean(jnp.mean((made - target) ** 2), ("data", "cp"))


def on_one(weights, x, target):
    """The same of the whole sequence on one device."""

    def attend(q, k, v):
        return attn_tune.flash_attention(q, k, v, causal=True)

    return jnp.mean((layer(weights, x, attend, jnp.arange(x.shape[1])) - target) ** 2)


keys = jax.random.split(jax.random.key(0), 4)
x, target = (jax.random.normal(key, (batch, length, WIDTH)) for key in keys[:2])
weights = {
    "in": jax.random.normal(keys[2], (WIDTH, (N + 2 * K) * H)) / WIDTH**0.5,
    "out": jax.random.normal(keys[3], (N * H, WIDTH)) / (N * H) ** 0.5,
}
loss = jax.shard_map(on_shard, mesh=mesh, in_specs=(P(), tokens, tokens), out_specs=P())
dealt = [jax.device_put(attn_tune.zigzag_shard(a, 1, devices), NamedSharding(mesh, tokens)) for a in (x, target)]
step = jax.jit(jax.value_and_grad(loss)).lower(weights, *dealt).compile()

first, gradients = step(weights, *dealt)
whole, wanted = jax.jit(jax.value_and_grad(on_one))(weights, x, target)
same = jax.tree.map(lambda a, b: bool(jnp.allclose(a, b, atol=1e-5)), (first, gradients), (whole, wanted))
print("loss and gradients are those of one device:", all(jax.tree.leaves(same)))
print("all-gathers in the program:", step.as_text().count("all-gather("))
second, _ = step(jax.tree.map(lambda w, g: w - 0.5 * g, weights, gradients), *dealt)
print("the loss is lower after a step:", bool(second < first))
