"""Parts of training benchmarks: a synthetic language, AdamW, and rounds in which programs take turns."""

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attn_tune.db.decide.statistics import FEW, compare_paired

# Of the synthetic language: likely followers of a token, and how far back a token may be copied from.
FOLLOWERS, BACK = 4, 16
BETAS, EPSILON, DECAY, WARMUP = (0.9, 0.95), 1e-8, 0.1, 10


class Trained(NamedTuple):
    """Parameters in float32 beside AdamW's two averages of the same shapes, and the number of steps taken."""

    params: Any
    mean: Any
    square: Any
    count: jax.Array


def synthetic_tokens(seed: int, vocabulary: int, batches: int, sequences: int, length: int) -> np.ndarray:
    """Tokens ``[batches, sequences, length]`` of a language with structure, which a model can learn.

    Half of the tokens are one of four followers of the token before, two fifths repeat the token of 16 before, the rest
    are any. The followers are fixed; the seed chooses among them.
    """
    table = np.random.default_rng(0).integers(vocabulary, size=(vocabulary, FOLLOWERS))
    rng, shape = np.random.default_rng(seed), (batches * sequences, length)
    tokens, which = rng.integers(vocabulary, size=shape), rng.integers(FOLLOWERS, size=shape)
    kind = rng.random(shape)
    for t in range(1, length):
        tokens[:, t] = np.where(kind[:, t] < 0.5, table[tokens[:, t - 1], which[:, t]], tokens[:, t])
        if t >= BACK:
            tokens[:, t] = np.where(kind[:, t] > 0.6, tokens[:, t - BACK], tokens[:, t])
    return tokens.reshape(batches, sequences, length).astype(np.int32)


def untrained(params: Any) -> Trained:
    """The state before the first step."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return Trained(params, zeros, jax.tree.map(jnp.copy, zeros), jnp.zeros((), jnp.int32))


def adamw_step(loss: Callable[[Any, jax.Array], jax.Array], rate: float) -> Callable[..., Any]:
    """A training step ``(state, tokens) -> (state, loss)`` (AdamW, arXiv 1711.05101, with a linear warm-up)."""

    def step(state: Trained, tokens: jax.Array) -> tuple[Trained, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(state.params, tokens)
        count = state.count + 1
        speed = rate * jnp.minimum(1.0, count / WARMUP)
        first, second = BETAS
        mean = jax.tree.map(lambda m, g: first * m + (1 - first) * g, state.mean, gradients)
        square = jax.tree.map(lambda s, g: second * s + (1 - second) * g * g, state.square, gradients)

        def moved(p: jax.Array, m: jax.Array, s: jax.Array) -> jax.Array:
            towards = (m / (1 - first**count)) / (jnp.sqrt(s / (1 - second**count)) + EPSILON)
            return p - speed * (towards + (DECAY * p if p.ndim > 1 else 0.0))

        return Trained(jax.tree.map(moved, state.params, mean, square), mean, square, count), value

    return step


def rms_norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    """``x`` over the root of its mean square, in float32, times the weight; in the dtype of ``x``."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6) * weight).astype(x.dtype)


def rotated(x: jax.Array) -> jax.Array:
    """Rotary embedding of ``[B, T, heads, head dim]`` (arXiv 2104.09864), in halves, with base 500,000."""
    half = x.shape[-1] // 2
    speeds = 500_000.0 ** (-jnp.arange(half) / half)
    angles = (jnp.arange(x.shape[1])[:, None] * speeds)[:, None]
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def swiglu(x: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """The gated perceptron of today's models (arXiv 2002.05202)."""
    return (jax.nn.silu(x @ gate) * (x @ up)) @ down


def cross_entropy(x: jax.Array, head: jax.Array, wanted: jax.Array, rows: int) -> jax.Array:
    """Mean loss of tokens ``[M]`` from ``x`` ``[M, width]``; ``rows`` logits at a time, made again in the backward."""

    @jax.checkpoint
    def part(args: tuple[jax.Array, jax.Array]) -> jax.Array:
        logits = (args[0] @ head).astype(jnp.float32)
        chosen = jnp.take_along_axis(logits, args[1][:, None], axis=-1)[:, 0]
        return jnp.sum(jax.nn.logsumexp(logits, axis=-1) - chosen)

    parts = max(1, len(wanted) // rows)
    return jnp.sum(jax.lax.map(part, (x.reshape(parts, -1, x.shape[-1]), wanted.reshape(parts, -1)))) / len(wanted)


def share_product_tuning() -> None:
    """Keep XLA's choices for matrix products on disk, so that programs do not differ in what was chosen for each."""
    if jax.default_backend() != "cpu":
        jax.config.update("jax_compilation_cache_dir", tempfile.mkdtemp(prefix="training"))


def compile_all(lowered: Mapping[str, Any]) -> dict[str, Any]:
    """Compiled programs by name; the first alone, whose choices for matrix products the others take over."""
    first = next(iter(lowered))
    programs = {first: lowered[first].compile()}
    rest = [name for name in lowered if name != first]
    with ThreadPoolExecutor(4) as pool:
        return programs | dict(zip(rest, pool.map(lambda name: lowered[name].compile(), rest), strict=True))


def take_turns(
    runs: Mapping[str, Callable[[], None]], rounds: int, seconds: float = float("inf")
) -> dict[str, list[int]]:
    """Nanoseconds of every sample by the host's clock; each round runs all, every other one in reverse order."""
    end = time.monotonic() + seconds
    samples: dict[str, list[int]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for turn in range(rounds):
        if turn and time.monotonic() > end:
            break
        for name in runs if turn % 2 == 0 else reversed(runs):
            start = time.perf_counter_ns()
            runs[name]()
            samples[name].append(time.perf_counter_ns() - start)
    return samples


def timed_row(samples: Sequence[int], others: Sequence[int], name: str) -> dict[str, Any]:
    """The median in milliseconds, and the paired ratio to ``others`` with its 95 % bootstrap interval.

    The interval is that of the extremes where there are fewer than 8 pairs.
    """
    row: dict[str, Any] = {"ms": statistics.median(samples) / 1e6, "samples_ns": list(samples)}
    found = compare_paired(list(zip(samples, others, strict=True)), seed=name)
    limits = (found.least, found.extremes) if found.count < FEW else (found.quantile(0.025), found.quantile(0.975))
    return row | {"ratio": found.ratio, "interval": list(limits)}


def largest_gap(losses: Sequence[float], others: Sequence[float]) -> float:
    """The largest relative difference of two curves of losses."""
    a, b = np.asarray(losses, np.float64), np.asarray(others, np.float64)
    return float(np.max(np.abs(a - b) / np.abs(b)))
