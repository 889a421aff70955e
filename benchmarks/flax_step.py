"""A small flax transformer and its training step, with the attention of JAX or with ours; for ``model_to_pack.py``.

``stock`` and ``ours`` are what ``attn-tune sweep --from-fn flax_step:stock`` calls: they return the step and abstract
arguments. Layers alternate between local and global attention when there are several.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

LAYERS = int(os.environ.get("FLAX_STEP_LAYERS", "4"))
LENGTH = int(os.environ.get("FLAX_STEP_LENGTH", "256"))
BATCH, WINDOW = 2, 15
VOCABULARY, WIDTH, HEADS, KV_HEADS = 64, 64, 4, 2

type Attend = Callable[[jax.Array, jax.Array, jax.Array, int | None], jax.Array]


def stock_attention(q: jax.Array, k: jax.Array, v: jax.Array, left: int | None) -> jax.Array:
    """Causal attention by JAX; ``left`` is the window."""
    window = None if left is None else (left, 0)
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, local_window_size=window)


def our_attention(q: jax.Array, k: jax.Array, v: jax.Array, left: int | None) -> jax.Array:
    """The same by attn-tune."""
    import attn_tune

    window = None if left is None else (left, None)
    return attn_tune.flash_attention(q, k, v, causal=True, sliding_window=window)


class Block(nnx.Module):
    """Grouped-query attention and a two-layer perceptron, both after a norm and beside the trunk."""

    def __init__(self, attend: Attend, left: int | None, rngs: nnx.Rngs):
        size = WIDTH // HEADS
        linear = functools.partial(nnx.LinearGeneral, dtype=jnp.bfloat16, rngs=rngs)
        self.attend, self.left = attend, left
        self.query = linear(WIDTH, (HEADS, size))
        self.key = linear(WIDTH, (KV_HEADS, size))
        self.value = linear(WIDTH, (KV_HEADS, size))
        self.out = linear((HEADS, size), WIDTH, axis=(-2, -1))
        self.norms = nnx.List([nnx.RMSNorm(WIDTH, rngs=rngs) for _ in range(2)])
        self.up = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.norms[0](x)
        x = x + self.out(self.attend(self.query(y), self.key(y), self.value(y), self.left))
        return x + self.down(nnx.gelu(self.up(self.norms[1](x))))


class Model(nnx.Module):
    """A language model whose embedding is also its head."""

    def __init__(self, attend: Attend, rngs: nnx.Rngs):
        windows = [WINDOW if i % 2 else None for i in range(LAYERS)]
        self.embedding = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(attend, left, rngs) for left in windows])
        self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.embedding.attend(self.norm(x))


def training_step(attend: Attend) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """``(step, (parameters, tokens))``: one step of gradient descent, and abstract arguments for it."""
    graph, state = nnx.split(nnx.eval_shape(lambda: Model(attend, nnx.Rngs(0))))

    def loss(state: Any, tokens: jax.Array) -> jax.Array:
        logits = nnx.merge(graph, state)(tokens[:, :-1])
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)
        return -chosen.mean()

    def step(state: Any, tokens: jax.Array) -> tuple[Any, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(state, tokens)
        return jax.tree.map(lambda p, g: p - 0.01 * g, state, gradient), value

    return step, (state, jax.ShapeDtypeStruct((BATCH, LENGTH + 1), jnp.int32))


stock = functools.partial(training_step, stock_attention)
ours = functools.partial(training_step, our_attention)


def losses(attend: Attend, steps: int = 2) -> list[float]:
    """Trains for real, from fixed parameters and tokens."""
    step, _ = training_step(attend)
    _, state = nnx.split(Model(attend, nnx.Rngs(0)))
    tokens = jax.random.randint(jax.random.key(1), (BATCH, LENGTH + 1), 0, VOCABULARY)
    found, run = [], jax.jit(step)
    for _ in range(steps):
        state, loss = run(state, tokens)
        found.append(float(loss))
    return found
