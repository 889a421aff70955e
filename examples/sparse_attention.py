"""A layer of sparse latent attention: select tokens by the indexer, attend to them, and compare with attending to all.

python examples/sparse_attention.py
"""

import jax
import jax.numpy as jnp

import attn_tune

batch, length, heads, latent, rope, index_heads, index_width = 1, 96, 4, 64, 16, 4, 32
keys = jax.random.split(jax.random.key(0), 5)
query = jax.random.normal(keys[0], (batch, length, heads, latent + rope), jnp.bfloat16)
latents = jax.random.normal(keys[1], (batch, length, latent + rope), jnp.bfloat16)
index_query = jax.random.normal(keys[2], (batch, length, index_heads, index_width), jnp.bfloat16)
index_key = jax.random.normal(keys[3], (batch, length, index_width), jnp.bfloat16)
weights = jax.nn.softmax(jax.random.normal(keys[4], (batch, length, index_heads)))
scale = (48 + rope) ** -0.5


@jax.jit
def attend():
    # Each query sees the tokens up to its own.
    ends = jnp.broadcast_to(jnp.arange(1, length + 1), (batch, length))
    indices = attn_tune.indexer_topk(index_query, index_key, weights, ends=ends, topk=16)
    every = jnp.where(jnp.arange(length) < ends[..., None], jnp.arange(length), -1)
    return [
        attn_tune.sparse_mla(query[..., :latent], query[..., latent:], latents, rows, softmax_scale=scale)
        for rows in (indices, every)
    ]


sparse, dense = attend()
first = slice(0, 16)
same = jnp.allclose(sparse[:, first], dense[:, first], atol=0.02)
print("the first 16 queries see the same tokens:", bool(same))
print("largest difference of the others, which leave tokens out:", float(jnp.max(jnp.abs(sparse - dense))))
assert same
