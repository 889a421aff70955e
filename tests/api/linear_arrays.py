"""Small arguments of each function of linear attention by the kind of its gates, and what numpy makes of them."""

import importlib

import jax.numpy as jnp
import numpy as np

import attn_tune
from tests.ops.recurrent.recurrence_numpy import recurrence

B, T, K, N, H, V = 2, 22, 2, 4, 8, 12
# A function and the kind of its gates.
KINDS = {
    "gated_delta_rule": ("gated_delta_rule", "head"),
    "head": ("linear_attention", "head"),
    "constant": ("linear_attention", "constant"),
    "none": ("linear_attention", "none"),
    "gla": ("gla", "channel"),
    "kda": ("kda", "channel"),
}


def call(kind):
    return getattr(attn_tune, KINDS[kind][0])


def arrays(kind, length=T, batch=B, seed=0, dtype=jnp.float32):
    op, gate = KINDS[kind]
    # By numpy: of jax every shape would be a program to compile, which takes longer than many of the tests.
    draws = [np.random.default_rng((seed, number)) for number in range(6)]

    def normal(number, *shape):
        return draws[number].standard_normal(shape, np.float32)

    q, k = (normal(number, batch, length, K, H) for number in range(2))
    gates = {"constant": (N,), "head": (batch, length, N), "channel": (batch, length, N, H)}
    found = {
        "q": jnp.asarray(q / np.linalg.norm(q, axis=-1, keepdims=True), dtype),
        "k": jnp.asarray(k / np.linalg.norm(k, axis=-1, keepdims=True), dtype),
        "v": jnp.asarray(normal(2, batch, length, N, V), dtype),
        "initial_state": jnp.asarray(normal(5, batch, N, H, V)),
    }
    if gate != "none":
        found["g"] = jnp.asarray(-np.logaddexp(0, normal(3, *gates[gate]) - 1))
    if op in ("gated_delta_rule", "kda"):
        found["beta"] = jnp.asarray(1 / (1 + np.exp(-normal(4, batch, length, N))))
    return found


def part(given, where):
    """The arguments of some tokens, without an initial state."""
    return {n: x if n == "g" and x.ndim == 1 else x[:, where] for n, x in given.items() if n != "initial_state"}


def exact(kind, given, scale=None):
    """Outputs and final states in float64, one sequence, head and token after the other."""
    op, gate = KINDS[kind]
    problem = importlib.import_module(f"attn_tune.ops.{op}.problem").Problem
    operands = importlib.import_module(f"attn_tune.ops.{op}.operands").Operands
    batch, length, key_heads, rows = given["q"].shape
    heads, columns = given["v"].shape[2:]
    return recurrence(
        problem(
            batch=batch,
            length=length,
            num_value_heads=heads,
            num_key_heads=key_heads,
            head_dim=rows,
            v_head_dim=columns,
            dtype=str(given["q"].dtype),
            gate=gate if "g" in given else "none",
            has_beta="beta" in given,
            scale=rows**-0.5 if scale is None else scale,
        ),
        operands(**given),
    )
