"""A layer of linear attention with the gated delta rule: trained on whole sequences, then decoding with its state.

python examples/gated_delta_layer.py

What stands around the op is plain JAX, which XLA fuses: projections, a short convolution, keys of length one, gates.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import attn_tune

# Query/key heads, value heads, and their widths; ``WINDOW`` tokens enter each output of the convolution.
WIDTH, K, N, H, V, WINDOW = 64, 2, 4, 16, 32, 4
CHANNELS = 2 * K * H + N * V


class Memory(NamedTuple):
    """The memory of a sequence between calls: as much after a million tokens as after one.

    Attributes:
      recent: the last inputs of the convolution, ``[B, WINDOW - 1, CHANNELS]``.
      state: the states of the rule, ``[B, N, H, V]`` in float32.
    """

    recent: jax.Array
    state: jax.Array


def empty_memory(batch):
    return Memory(jnp.zeros((batch, WINDOW - 1, CHANNELS)), jnp.zeros((batch, N, H, V)))


def parameters(seed):
    """Random weights; heads start with rates of forgetting between 1 and 16, as Mamba-2 draws them."""
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return jnp.asarray(rng.standard_normal(shape, np.float32) / np.sqrt(shape[0]))

    return {
        "mixed": draw(WIDTH, CHANNELS),
        "filter": draw(WINDOW, CHANNELS),
        "a": draw(WIDTH, N),
        "b": draw(WIDTH, N),
        "z": draw(WIDTH, N * V),
        "A_log": jnp.log(jnp.asarray(rng.uniform(1, 16, N).astype(np.float32))),
        "dt_bias": jnp.full(N, -3.0),
        "norm": jnp.ones(V),
        "out": draw(N * V, WIDTH),
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
    batch, length, _ = x.shape
    mixed, recent = convolved(x @ params["mixed"], before, params["filter"])
    q, k, v = jnp.split(mixed, [K * H, 2 * K * H], axis=-1)
    q, k = (of_length_one(y.reshape(batch, length, K, H)) for y in (q, k))
    g = -jnp.exp(params["A_log"]) * jax.nn.softplus(x @ params["a"] + params["dt_bias"])
    beta = jax.nn.sigmoid(x @ params["b"])
    arrays = (q, k, v.reshape(batch, length, N, V), g, beta)
    if memory is None:
        out, kept = attn_tune.gated_delta_rule(*arrays), None
    else:
        out, state = attn_tune.gated_delta_rule(*arrays, initial_state=memory.state, return_state=True)
        kept = Memory(recent, state)
    z = jax.nn.silu((x @ params["z"]).reshape(batch, length, N, V))
    out = out * jax.lax.rsqrt(jnp.mean(out * out, axis=-1, keepdims=True) + 1e-6) * params["norm"] * z
    return out.reshape(batch, length, N * V) @ params["out"], kept


@jax.jit
def train_step(params, x, wanted):
    def loss(params):
        return jnp.mean((layer(params, x)[0] - wanted) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.3 * g, params, gradients)


def main():
    params = parameters(0)
    x = jax.random.normal(jax.random.key(0), (2, 48, WIDTH))
    # A task that needs memory: the input of eight tokens before.
    wanted = jnp.pad(x, ((0, 0), (8, 0), (0, 0)))[:, :48]
    losses = []
    for _ in range(20):
        value, params = train_step(params, x, wanted)
        losses.append(float(value))
    print(f"loss {losses[0]:.3f}, after 20 steps {losses[-1]:.3f}, lower: {losses[-1] < losses[0]}")

    run = jax.jit(layer)
    whole, _ = run(params, x, empty_memory(2))
    # The same tokens as a prompt of 40 and eight steps of one token.
    prompt, memory = run(params, x[:, :40], empty_memory(2))
    # What a sequence keeps is updated in place.
    step = functools.partial(jax.jit(layer, donate_argnums=2), params)
    found = [prompt]
    for t in range(40, 48):
        out, memory = step(x[:, t : t + 1], memory)
        found.append(out)
    same = np.allclose(np.concatenate(found, axis=1), whole, atol=1e-4)
    print("a prompt and steps of one token give the same:", same)
    print("bytes that a sequence keeps:", sum(y.nbytes for y in memory) // 2)


if __name__ == "__main__":
    main()
