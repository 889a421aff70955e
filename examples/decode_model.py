"""A small model like Llama that decodes through a paged cache, on one device and with its heads on all of them.

python examples/decode_model.py      (eight CPU devices, if there are no others)

Prompts of different lengths are prefilled in one call of ``ragged_paged``. Then each sequence decodes greedily, one
token a step, in caches that are donated and so updated in place. The same tokens come from a model without a cache,
which attends to the whole text at every step, and from the same program with heads sharded.
"""

import functools
import os
from typing import NamedTuple

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import attn_tune

# Greedy tokens are compared for equality, so that float32 must be float32 on a GPU too.
jax.config.update("jax_default_matmul_precision", "highest")

LAYERS, WIDTH, HIDDEN, VOCABULARY = 2, 64, 128, 256
# Query heads, key heads and head dim; a device has a key head at least.
N, K, H = 2 * jax.device_count(), jax.device_count(), 16
PAGE, PAGES_PER_SEQUENCE = 8, 4
PROMPTS, NEW = (5, 12, 1, 9), 10


class Pages(NamedTuple):
    """The cache of one layer, ``[pages, PAGE, K, H]`` each."""

    k: jax.Array
    v: jax.Array


def parameters(seed):
    """Random weights of all layers, of the embedding and of the logits."""
    shapes = {
        "query": (WIDTH, N, H),
        "key": (WIDTH, K, H),
        "value": (WIDTH, K, H),
        "out": (N, H, WIDTH),
        "gate": (WIDTH, HIDDEN),
        "up": (WIDTH, HIDDEN),
        "down": (HIDDEN, WIDTH),
    }
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return jnp.asarray(rng.standard_normal(shape, np.float32) / np.sqrt(WIDTH))

    layers = [
        {name: draw(*shape) for name, shape in shapes.items()} | {"norm1": jnp.ones(WIDTH), "norm2": jnp.ones(WIDTH)}
        for _ in range(LAYERS)
    ]
    return {
        "embedding": draw(VOCABULARY, WIDTH),
        "unembedding": draw(VOCABULARY, WIDTH),
        "norm": jnp.ones(WIDTH),
        "layers": layers,
    }


def rms_norm(x, weight):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * weight


def rotary(x, position):
    """Pairs of elements of ``x`` [..., heads, H] turned by angles that grow with the position [...]."""
    frequency = 10000.0 ** (-jnp.arange(0, H, 2) / H)
    angle = position[..., None, None] * frequency
    a, b = x[..., : H // 2], x[..., H // 2 :]
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], axis=-1)


def forward(params, tokens, position, attend):
    """Logits of tokens at positions, of any one shape. ``attend(i, q, k, v)`` is the attention of layer ``i``."""
    x = params["embedding"][tokens]
    for i, layer in enumerate(params["layers"]):
        y = rms_norm(x, layer["norm1"])
        q, k, v = (jnp.einsum("...w,wnh->...nh", y, layer[name]) for name in ("query", "key", "value"))
        mixed = attend(i, rotary(q, position), rotary(k, position), v)
        x = x + jnp.einsum("...nh,nhw->...w", mixed, layer["out"])
        y = rms_norm(x, layer["norm2"])
        x = x + (jax.nn.silu(y @ layer["gate"]) * (y @ layer["up"])) @ layer["down"]
    return rms_norm(x, params["norm"]) @ params["unembedding"].T


@functools.partial(jax.jit, donate_argnames="cache")
def prefill(params, cache, tokens, cu_q_lens, page_table):
    """The next token after each prompt, and the cache with all of them. ``tokens`` are one prompt after the other."""
    kv_lens = jnp.diff(cu_q_lens)
    index = jnp.arange(tokens.shape[0])
    position = index - cu_q_lens[jnp.searchsorted(cu_q_lens, index, side="right") - 1]
    written = []

    def attend(i, q, k, v):
        new = attn_tune.paged_append(k, v, *cache[i], kv_lens, page_table, cu_q_lens=cu_q_lens)
        written.append(Pages(new.k_pages, new.v_pages))
        return attn_tune.ragged_paged(q, new.k_pages, new.v_pages, kv_lens, cu_q_lens, page_table)

    logits = forward(params, tokens, position, attend)
    return jnp.argmax(logits[cu_q_lens[1:] - 1], axis=-1), written


@functools.partial(jax.jit, donate_argnames="cache")
def step(params, cache, tokens, kv_lens, page_table):
    """The token after ``tokens`` [B], the last ones of sequences of ``kv_lens`` tokens, and the cache with these."""
    written = []

    def attend(i, q, k, v):
        new = attn_tune.paged_append(k, v, *cache[i], kv_lens, page_table)
        written.append(Pages(new.k_pages, new.v_pages))
        return attn_tune.paged_decode(q, new.k_pages, new.v_pages, kv_lens, page_table)

    return jnp.argmax(forward(params, tokens, kv_lens - 1, attend), axis=-1), written


def generate(params, cache, prompts, page_table, step=step):
    """The ``NEW`` greedy tokens of each sequence ``[B, NEW]``, through a paged cache; ``step`` may be compiled."""
    cu_q_lens = jnp.cumsum(jnp.array([0, *map(len, prompts)]))
    kv_lens = jnp.diff(cu_q_lens)
    token, cache = prefill(params, cache, jnp.concatenate(prompts), cu_q_lens, page_table)
    found = [token]
    for _ in range(NEW - 1):
        kv_lens = kv_lens + 1
        token, cache = step(params, cache, token, kv_lens, page_table)
        found.append(token)
    return np.stack(found, axis=1)


@jax.jit
def dense_step(params, text):
    """The token after each one of ``text`` [tokens], from attention in plain JAX without a cache."""
    causal = jnp.tril(jnp.ones((text.size, text.size), bool))

    def attend(i, q, k, v):
        k, v = (jnp.repeat(x, N // K, axis=1) for x in (k, v))
        logits = jnp.where(causal, jnp.einsum("tnh,snh->nts", q, k) / np.sqrt(H), -jnp.inf)
        return jnp.einsum("nts,snh->tnh", jax.nn.softmax(logits), v)

    return jnp.argmax(forward(params, text, jnp.arange(text.size), attend), axis=-1)


def generate_dense(params, prompts):
    """The same tokens, sequence by sequence; what is behind a text so far is hidden by the causal mask."""
    found = np.zeros((len(prompts), NEW), np.int32)
    for row, prompt in enumerate(prompts):
        text = np.zeros(max(PROMPTS) + NEW, np.int32)
        text[: len(prompt)] = prompt
        for i in range(NEW):
            end = len(prompt) + i
            text[end] = found[row, i] = dense_step(params, text)[end - 1]
    return found


def empty_cache(batch):
    # Slots that no token has been written to are never read: they may hold anything.
    shape = (batch * PAGES_PER_SEQUENCE + 1, PAGE, K, H)
    return [Pages(jnp.full(shape, jnp.nan), jnp.full(shape, jnp.nan)) for _ in range(LAYERS)]


def by_heads(mesh, params, cache):
    """Parameters and cache on a mesh, heads and hidden units cut: Megatron's layout, with two sums a layer."""
    cut = {"query": 1, "key": 1, "value": 1, "out": 0, "gate": 1, "up": 1, "down": 0}

    def put(path, x):
        axis = cut.get(getattr(path[-1], "key", ""))
        spec = PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, "heads")
        return jax.device_put(x, NamedSharding(mesh, spec))

    pages = NamedSharding(mesh, PartitionSpec(None, None, "heads", None))
    return jax.tree_util.tree_map_with_path(put, params), jax.device_put(cache, pages)


def main():
    params, batch = parameters(0), len(PROMPTS)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, VOCABULARY, n) for n in PROMPTS]
    pages = rng.permutation(batch * PAGES_PER_SEQUENCE + 1)[: batch * PAGES_PER_SEQUENCE]
    page_table = jnp.asarray(pages.reshape(batch, PAGES_PER_SEQUENCE), jnp.int32)

    want = generate_dense(params, prompts)
    print("tokens of the first sequence:", want[0].tolist())
    print(
        "with a cache they are the same:",
        np.array_equal(generate(params, empty_cache(batch), prompts, page_table), want),
    )

    mesh = jax.make_mesh((jax.device_count(),), ("heads",), axis_types=(AxisType.Auto,))
    cut, cache = by_heads(mesh, params, empty_cache(batch))
    tokens, kv_lens = jnp.zeros(batch, jnp.int32), jnp.asarray(PROMPTS) + 1
    compiled = step.lower(cut, cache, tokens, kv_lens, page_table).compile()
    sharded = generate(cut, cache, prompts, page_table, compiled)
    print(f"with heads on {jax.device_count()} devices too:", np.array_equal(sharded, want))
    print("all-gathers in a step:", compiled.as_text().count("all-gather"))
    print("the cache is updated in place:", all(x.is_deleted() for x in jax.tree.leaves(cache)))
    held = sum(x.nbytes for x in jax.tree.leaves(empty_cache(batch))) // jax.device_count()
    memory = compiled.memory_analysis()
    if memory is not None:
        print("bytes of a device that a step writes in place:", memory.alias_size_in_bytes, "of a cache of", held)


if __name__ == "__main__":
    main()
