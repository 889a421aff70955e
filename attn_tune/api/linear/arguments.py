"""The checks of the arguments of linear attention. Each error names the argument, what it may be, and what it is."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from attn_tune.ops.fields.arguments import DTYPES, check_array, static_float
from attn_tune.ops.fields.cache_arguments import check_integers, check_workload
from attn_tune.ops.recurrent.problem import LOWEST_GATE, WORKLOADS
from attn_tune.schema.errors import UsageError

# What the gates of a call are, by their kind.
_GATES = {
    "constant": "one number for each value head",
    "head": "one number for each token and value head",
    "channel": "one number for each token, value head and channel of the keys",
}
# What to do with gates that an op does not take, by their number of axes; 0 for None.
_ELSEWHERE = {
    ("gated_delta_rule", 1): "one gate for each head is jnp.broadcast_to(g, v.shape[:3])",
    ("gated_delta_rule", 4): "a gate for each channel of the keys is the g of kda",
    ("linear_attention", 4): "a gate for each channel of the keys is the g of gla",
    ("kda", 0): "without a gate call gated_delta_rule(..., g=None)",
    ("kda", 1): "one gate for each head is jnp.broadcast_to(g, v.shape[:3]) of gated_delta_rule",
    ("kda", 3): "a gate for each head is the g of gated_delta_rule",
    ("gla", 0): "without a gate call linear_attention(..., g=None)",
    ("gla", 1): "one gate for each head is the g of linear_attention",
    ("gla", 3): "a gate for each head is the g of linear_attention",
}


def checked_tokens(q: Any, k: Any, v: Any) -> tuple[Array, Array, Array]:
    """Queries, keys and values that fit one another."""
    q, k, v = (check_array(name, x) for name, x in (("q", q), ("k", k), ("v", v)))
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4 or 0 in x.shape[2:]:
            raise UsageError(
                f"{name} must be [batch, length, heads, head dim], none of the last two zero, got shape {x.shape}"
            )
        if x.dtype.name not in DTYPES:
            raise UsageError(f"{name} must have dtype {', '.join(DTYPES)}, got {x.dtype}")
    if not q.dtype == k.dtype == v.dtype:
        raise UsageError(f"q, k and v must share a dtype, got {q.dtype}, {k.dtype}, {v.dtype}")
    if q.shape != k.shape:
        raise UsageError(f"q and k must have one shape, got {q.shape} and {k.shape}")
    if q.shape[:2] != v.shape[:2]:
        raise UsageError(f"q and v must agree in batch and length, got {q.shape} and {v.shape}")
    if v.shape[2] % q.shape[2]:
        raise UsageError(
            f"value heads ({v.shape[2]}) must be a multiple of query/key heads ({q.shape[2]}), "
            f"got v of shape {v.shape} and q of shape {q.shape}"
        )
    return q, k, v


def checked_gates(op: str, given: Any, kind: str, q: Array, v: Array) -> Float[Array, "..."] | None:
    """Gates of ``op`` in float32, none of which is infinite."""
    if kind == "none":
        return None
    shapes = {"constant": v.shape[2:3], "head": v.shape[:3], "channel": (*v.shape[:3], q.shape[3])}
    x = None if given is None else check_array("g", given)
    if x is None or x.ndim != len(shapes[kind]):
        allowed = ("head", "constant") if op == "linear_attention" else (kind,)
        forms = ", or ".join(f"{list(shapes[one])}, {_GATES[one]}" for one in allowed)
        got = "None" if x is None else f"{x.dtype}{list(x.shape)}"
        remedy = _ELSEWHERE.get((op, 0 if x is None else x.ndim))
        raise UsageError(f"g must be {_dtypes(q)}{forms}, got {got}{f'; {remedy}' if remedy else ''}")
    gates = _checked_numbers("g", x, shapes[kind], _GATES[kind], q)
    # Differences of infinite gates are not numbers; the lowest one is as good as minus infinity. For the derivative of
    # a maximum JAX would keep two more arrays like the gates, and not flags alone.
    return lax.select(gates <= LOWEST_GATE, jnp.full_like(gates, LOWEST_GATE), gates)


def checked_strengths(given: Any, q: Array, v: Array) -> Float[Array, "B T N"] | None:
    """Strengths in float32."""
    return None if given is None else _checked_numbers("beta", given, v.shape[:3], _GATES["head"], q)


def checked_state(given: Any, shape: tuple[int, ...], *, is_pool: bool) -> Float[Array, "states N H V"] | None:
    """The initial states, or a pool of any number of them."""
    if given is None:
        return None
    state = check_array("initial_state", given)
    wanted = [*(["slots"] if is_pool else shape[:1]), *shape[1:]]
    fits = state.ndim == 4 and state.shape[is_pool:] == shape[is_pool:] and (state.shape[0] > 0 or not is_pool)
    if not fits or state.dtype != jnp.float32:
        listed = f"[{', '.join(map(str, wanted))}]{', at least one slot' if is_pool else ''}"
        raise UsageError(f"initial_state must be float32{listed}, got {state.dtype}{list(state.shape)}")
    return state


def checked_slots(
    given: Any, sequences: int, initial_state: Any, return_state: bool
) -> Int[Array, " sequences"] | None:
    """The slot of each sequence in the pool that ``initial_state`` is."""
    if given is None:
        return None
    if initial_state is None or not return_state:
        raise UsageError("slots are of a pool of states, updated in place; give initial_state and return_state=True")
    return check_integers("slots", given, (sequences,), "the sequences") if sequences else jnp.zeros(0, jnp.int32)


def check_distinct(slots: Any, pool: int) -> None:
    """Refuse two sequences in one of the ``pool`` slots, as far as the host holds the numbers."""
    if slots is None or isinstance(slots, Array):
        return
    taken, counts = np.unique(slots, return_counts=True)
    twice = taken[(counts > 1) & (taken >= 0) & (taken < pool)]
    if twice.size:
        raise UsageError(
            f"slots must differ, got {twice[0]} twice; one that is not in the pool, such as -1, is padding"
        )


def checked_workload(workload: Any, is_ragged: bool) -> str:
    """The name of a profile of lengths."""
    check_workload(workload, WORKLOADS)
    if workload != "eq" and not is_ragged:
        raise UsageError(f"workload={workload!r} is a profile of lengths; it needs cu_seqlens")
    return workload


def checked_scale(scale: Any, head_dim: int) -> float:
    """The scale of the output."""
    if isinstance(scale, Tracer):
        raise UsageError(
            "scale must be a Python number, not a traced value: it is compiled into the kernel; give scale=1.0 and "
            "multiply q or the output by yours"
        )
    factor = head_dim**-0.5 if scale is None else static_float("scale", scale)
    if abs(factor) > float(jnp.finfo(jnp.float32).max):
        raise UsageError(f"scale must be a finite float32, got {factor}")
    return factor


def _checked_numbers(name: str, given: Any, shape: tuple[int, ...], meaning: str, q: Array) -> Float[Array, "..."]:
    x = check_array(name, given)
    if x.shape != shape or x.dtype not in (jnp.float32, q.dtype):
        raise UsageError(f"{name} must be {_dtypes(q)}{list(shape)}, {meaning}, got {x.dtype}{list(x.shape)}")
    return x.astype(jnp.float32)


def _dtypes(q: Array) -> str:
    return " or ".join(dict.fromkeys(("float32", q.dtype.name)))
