"""A layer of Kimi Linear: the delta rule with a gate for each channel, trained on whole sequences, then decoding.

python examples/kimi_delta_layer.py

What stands around the op is plain JAX, which XLA fuses: projections, short convolutions, queries and keys of length
one, gates of low rank from ``A_log`` and ``dt_bias``, and the gated norm of the output.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import attn_tune

# Heads, their width, the rank of gates; ``WINDOW`` tokens enter each output of the convolutions.
WIDTH, N, H, RANK, WINDOW = 64, 4, 16, 8, 4


class Memory(NamedTuple):
    """The memory of a sequence between calls.

    Attributes:
      recent: the last inputs of the convolutions of queries, keys and values, ``[B, WINDOW - 1, 3 * N * H]``.
      state: the states of the rule, ``[B, N, H, H]`` in float32.
    """

    recent: jax.Array
    state: jax.Array


def empty_memory(batch):
    return Memory(jnp.zeros((batch, WINDOW - 1, 3 * N * H)), jnp.zeros((batch, N, H, H)))


def parameters(seed):
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return jnp.asarray(rng.standard_normal(shape, np.float32) / np.sqrt(shape[0]))

    return {
        "mixed": draw(WIDTH, 3 * N * H),
        "filter": draw(WINDOW, 3 * N * H),
        "gate_down": draw(WIDTH, RANK),
        "gate_up": draw(RANK, N * H),
        "A_log": jnp.log(jnp.asarray(rng.uniform(1, 16, N).astype(np.float32))),
        "dt_bias": jnp.full((N, H), -3.0),
        "beta": draw(WIDTH, N),
        "z_down": draw(WIDTH, RANK),
        "z_up": draw(RANK, N * H),
        "norm": jnp.ones(H),
        "out": draw(N * H, WIDTH),
    }


def convolved(x, recent, filter):
    """Each channel's weighted sum of its last ``WINDOW`` inputs, and the inputs that the next call needs."""
    x = jnp.concatenate([recent, x], axis=1)
    length = x.shape[1] - WINDOW + 1
    y = sum(x[:, i : i + length] * filter[i] for i in range(WINDOW))
    return jax.nn.silu(y), x[:, length:]


def of_length_one(x):
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6)


def layer(params, x, memory=None):
    """Outputs ``[B, T, WIDTH]`` of any number of tokens, and what the sequences keep: None without memory.

    So it is in training: a call that neither gives nor returns states is a problem of its own, with a faster backward.
    """
    before = empty_memory(x.shape[0]).recent if memory is None else memory.recent
    heads = (*x.shape[:2], N, H)
    mixed, recent = convolved(x @ params["mixed"], before, params["filter"])
    q, k, v = (y.reshape(heads) for y in jnp.split(mixed, 3, axis=-1))
    raw = (x @ params["gate_down"] @ params["gate_up"]).reshape(heads)
    g = -jnp.exp(params["A_log"])[:, None] * jax.nn.softplus(raw + params["dt_bias"])
    beta = jax.nn.sigmoid(x @ params["beta"])
    arrays = (of_length_one(q), of_length_one(k), v, g, beta)
    if memory is None:
        out, kept = attn_tune.kda(*arrays), None
    else:
        out, state = attn_tune.kda(*arrays, initial_state=memory.state, return_state=True)
        kept = Memory(recent, state)
    z = jax.nn.sigmoid(x @ params["z_down"] @ params["z_up"]).reshape(heads)
    out = out * jax.lax.rsqrt(jnp.mean(out * out, axis=-1, keepdims=True) + 1e-6) * params["norm"] * z
    return out.reshape(*x.shape[:2], N * H) @ params["out"], kept


@jax.jit
def train_step(params, x, wanted):
    def loss(params):
        return jnp.mean((layer(params, x)[0] - wanted) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.3 * g, params, gradients)


def main():
    params = parameters(0)
    x = jax.random.normal(jax.random.key(0), (2, 24, WIDTH))
    # A task that needs memory: the input of six tokens before.
    wanted = jnp.pad(x, ((0, 0), (6, 0), (0, 0)))[:, :24]
    losses = []
    for _ in range(20):
        value, params = train_step(params, x, wanted)
        losses.append(float(value))
    print(f"loss {losses[0]:.3f}, after 20 steps {losses[-1]:.3f}, lower: {losses[-1] < losses[0]}")

    run = jax.jit(layer)
    whole, _ = run(params, x, empty_memory(2))
    # The same tokens as a prompt of 20 and four steps of one token.
    prompt, memory = run(params, x[:, :20], empty_memory(2))
    # What a sequence keeps is updated in place.
    step = functools.partial(jax.jit(layer, donate_argnums=2), params)
    found = [prompt]
    for t in range(20, 24):
        out, memory = step(x[:, t : t + 1], memory)
        found.append(out)
    same = np.allclose(np.concatenate(found, axis=1), whole, atol=1e-4)
    print("a prompt and steps of one token give the same:", same)
    print("bytes that a sequence keeps:", sum(y.nbytes for y in memory) // 2)


if __name__ == "__main__":
    main()
