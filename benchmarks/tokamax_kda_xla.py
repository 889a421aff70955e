"""Kimi delta attention by XLA alone: tokamax's chunked form beside our ``kda/xla`` and what auto takes.

    pip install tokamax
    python benchmarks/tokamax_kda_xla.py --tokens 8192 --heads 16

One line for the forward and one for the gradient of every operand, the forward included: medians of calls in turn, as
multiples of our XLA kernel's time. tokamax's form has its gates made inside, from a logistic function with a lowest
gate of -5; ours are given the same ones. Outputs and gradients are compared first: the greatest difference over the
greatest value.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import attn_tune

_LOWEST, _DIM = -5.0, 128


def main() -> None:
    """Prints the lines."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    given = _arrays(args.tokens, args.heads)
    sides = {"xla": _ours("xla"), "tokamax": _tokamax, "auto": _ours(None)}
    device = jax.devices()[0]
    print(f"{device.device_kind}, JAX {jax.__version__}: {args.tokens} tokens, {args.heads} heads of {_DIM}, bfloat16")
    for name, make in (("forward", jax.jit), ("gradient", _gradient)):
        calls = {side: make(call) for side, call in sides.items()}
        results = {side: jax.block_until_ready(call(*given)) for side, call in calls.items()}
        us = _times(calls, given, args.rounds)
        words = [
            f"{side} {us[side] / us['xla']:.2f} (differs by {_difference(results[side], results['xla']):.1e})"
            for side in ("tokamax", "auto")
        ]
        # Absolute times say something of a GPU alone.
        first = f"xla 1 ({us['xla'] / 1e3:.2f} ms)" if device.platform == "gpu" else "xla 1"
        print(f"{name:8s} {first}, {', '.join(words)}", flush=True)


def _arrays(tokens: int, heads: int) -> tuple[jax.Array, ...]:
    keys = jax.random.split(jax.random.key(0), 5)
    shape = (1, tokens, heads, _DIM)
    q, k, v, raw = (jax.random.normal(key, shape) for key in keys[:4])
    q, k = (x / jnp.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    beta = jax.nn.sigmoid(jax.random.normal(keys[4], shape[:3]))
    return *(x.astype(jnp.bfloat16) for x in (q, k, v)), raw - 3, beta


def _ours(platform: str | None) -> Callable[..., jax.Array]:
    def call(q: Any, k: Any, v: Any, raw: Any, beta: Any) -> jax.Array:
        return attn_tune.kda(q, k, v, _LOWEST * jax.nn.sigmoid(raw), beta, platform=platform)

    return call


def _tokamax(q: Any, k: Any, v: Any, raw: Any, beta: Any) -> jax.Array:
    from tokamax._src.ops.kda.api import kimi_delta_attention

    heads = q.shape[2]
    out, _ = kimi_delta_attention(
        *(jnp.moveaxis(x, 2, 0) for x in (q, k, v, raw, beta)),
        scale=_DIM**-0.5,
        use_gate_in_kernel=True,
        a_log=jnp.zeros(heads),
        delta_time_bias=jnp.zeros(heads * _DIM),
        lower_bound=_LOWEST,
        implementation="xla_chunked",
    )
    return jnp.moveaxis(out, 0, 2)


def _gradient(call: Callable[..., jax.Array]) -> Callable[..., Any]:
    def loss(*given: Any) -> jax.Array:
        return jnp.sum(call(*given).astype(jnp.float32) ** 2)

    return jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3, 4)))


def _difference(found: Any, wanted: Any) -> float:
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    numbers = [[x.astype(jnp.float32) for x in pair] for pair in pairs]
    return max(float(jnp.max(jnp.abs(one - other)) / jnp.max(jnp.abs(other))) for one, other in numbers)


def _times(calls: dict[str, Callable[..., Any]], given: tuple[jax.Array, ...], rounds: int) -> dict[str, float]:
    """Median microseconds of each, the calls in turn, in an order by chance."""
    found: dict[str, list[float]] = {side: [] for side in calls}
    chance = random.Random(0)
    for _ in range(rounds):
        for side in chance.sample(list(calls), len(calls)):
            start = time.perf_counter()
            jax.block_until_ready(calls[side](*given))
            found[side].append(1e6 * (time.perf_counter() - start))
    return {side: statistics.median(times) for side, times in found.items()}


if __name__ == "__main__":
    main()
