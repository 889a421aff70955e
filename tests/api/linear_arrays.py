"""Small arguments of each function of linear attention by the kind of its gates, and what numpy makes of them."""

import importlib

import jax
import jax.numpy as jnp

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
    keys = jax.random.split(jax.random.key(seed), 6)
    q, k = (jax.random.normal(key, (batch, length, K, H)) for key in keys[:2])
    gates = {"constant": (N,), "head": (batch, length, N), "channel": (batch, length, N, H)}
    found = {
        "q": (q / jnp.linalg.norm(q, axis=-1, keepdims=True)).astype(dtype),
        "k": (k / jnp.linalg.norm(k, axis=-1, keepdims=True)).astype(dtype),
        "v": jax.random.normal(keys[2], (batch, length, N, V)).astype(dtype),
        "initial_state": jax.random.normal(keys[5], (batch, N, H, V)),
    }
    if gate != "none":
        found["g"] = -jax.nn.softplus(jax.random.normal(keys[3], gates[gate]) - 1)
    if op in ("gated_delta_rule", "kda"):
        found["beta"] = jax.nn.sigmoid(jax.random.normal(keys[4], (batch, length, N)))
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
