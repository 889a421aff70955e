"""Call attention, take its gradients, and ask which kernel answered and why.

python examples/call_attention.py
"""

import jax
import jax.numpy as jnp

import attn_tune

batch, length, heads, kv_heads, head_dim = 2, 256, 8, 2, 64
keys = jax.random.split(jax.random.key(0), 3)
query = jax.random.normal(keys[0], (batch, length, heads, head_dim), jnp.bfloat16)
key = jax.random.normal(keys[1], (batch, length, kv_heads, head_dim), jnp.bfloat16)
value = jax.random.normal(keys[2], (batch, length, kv_heads, head_dim), jnp.bfloat16)


@jax.jit
def loss(query, key, value):
    out = attn_tune.flash_attention(query, key, value, causal=True, sliding_window=(127, 0))
    return jnp.mean(out.astype(jnp.float32) ** 2)


value_and_gradients = jax.value_and_grad(loss, argnums=(0, 1, 2))
result, gradients = value_and_gradients(query, key, value)
print("loss", float(result))
print("gradients", [gradient.shape for gradient in gradients])

signature = (
    f"flash_attention/v1 b={batch} t={length} s={length} n={heads} k={kv_heads} "
    f"h={head_dim} v={head_dim} dtype=bfloat16 causal=1 left=127"
)
print(attn_tune.explain("flash_attention", signature))
print("lookups so far:", {str(rung): n for rung, n in attn_tune.stats().lookups.items() if n})
