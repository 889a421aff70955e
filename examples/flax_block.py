"""A transformer block of flax whose attention is ours: one argument.

python examples/flax_block.py        (pip install flax)
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from attn_tune.integrations.flax import attention_fn


class Block(nnx.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, width: int, heads: int, rngs: nnx.Rngs):
        self.attention = nnx.MultiHeadAttention(
            heads,
            width,
            attention_fn=functools.partial(attention_fn, is_causal=True),
            decode=False,
            rngs=rngs,
        )
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(2)])
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.down(jax.nn.gelu(self.up(self.norms[1](x))))


@nnx.jit
def train_step(block, x):
    return nnx.value_and_grad(lambda block: jnp.mean(block(x) ** 2))(block)


block = Block(width=64, heads=4, rngs=nnx.Rngs(0))
loss, gradients = train_step(block, jax.random.normal(jax.random.key(0), (2, 32, 64)))
print("loss", float(loss))
print("parameters with gradients", len(jax.tree.leaves(gradients)))
