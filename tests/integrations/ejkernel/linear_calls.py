"""Small random calls of linear attention by ejkernel's names, added to those of ``calls``."""

import numpy as np

from tests.integrations.ejkernel.calls import CALLS, STARTS, B, H, N, T, batch, call, floats

__all__ = ["CALLS"]


def recur(q, k, v, *, decay=None, beta=None, state=None, scale=None):
    """``(out, state)`` of one sequence: ``decay`` [T, N, H] or [T, N, 1]; with ``beta`` [T, N] the delta rule."""
    state = np.zeros((q.shape[1], q.shape[2], v.shape[2])) if state is None else state
    out = []
    for t in range(len(q)):
        state = state if decay is None else state * np.exp(decay[t])[..., None]
        new = v[t] if beta is None else (v[t] - np.einsum("nhv,nh->nv", state, k[t])) * beta[t][:, None]
        state = state + np.einsum("nh,nv->nhv", k[t], new)
        out.append(np.einsum("nhv,nh->nv", state, q[t]) * (q.shape[-1] ** -0.5 if scale is None else scale))
    return np.stack(out), state


def of_batch(function, *arrays):
    made = [function(*(x[i] for x in arrays)) for i in range(len(arrays[0]))]
    return tuple(np.stack([x[i] for x in made]) for i in (0, 1))


def linear(rng):
    return (floats(rng, B, T, N, H) for _ in range(3))


@call
def recurrent_attention__all_gates(rng):
    q, k, v = linear(rng)
    g, gk = (-np.abs(floats(rng, B, T, N, H)) for _ in range(2))
    gamma, state = -np.abs(floats(rng, N)), floats(rng, B, N, H, H)
    result = of_batch(lambda q, k, v, d, s: recur(q, k, v, decay=d, state=s), q, k, v, g + gk + gamma[:, None], state)
    return (q, k, v, g, gamma, gk, None, state), {"return_state": True}, result


@call
def gla_attention__reversed(rng):
    q, k, v = linear(rng)
    g = -np.abs(floats(rng, B, T, N, H))
    out, state = of_batch(lambda q, k, v, d: recur(q, k, v, decay=d, scale=0.5), *(x[:, ::-1] for x in (q, k, v, g)))
    keywords = {"reverse": True, "return_state": True, "softmax_scale": 0.5}
    return (q, k, v, g, None, np.zeros_like(state)), keywords, (out[:, ::-1], state)


@call
def lightning_attention__layer(rng):
    q, k, v = linear(rng)
    decay = np.broadcast_to(-8 / N * (1 - 1 / 3) * np.arange(N)[:, None], (T, N, 1))
    out = batch(lambda *x: recur(*x, decay=decay), q, k, v)
    return (q, k, v), {"layer_idx": 1, "num_layers": 3}, out


def normal(x):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


@call
def kernel_delta_attention__state(rng):
    q, k, v = linear(rng)
    beta, decay = rng.uniform(0, 1, (B, T, N)).astype(np.float32), -np.abs(floats(rng, B, T, N))
    state = floats(rng, B, N, H, H)
    result = of_batch(
        lambda q, k, v, b, d, s: recur(q, k, v, beta=b, decay=d, state=s),
        *(normal(q), normal(k), v, beta, decay[..., None], state),
    )
    return (q, k, v, beta, decay, state), {"return_state": True, "chunk_size": 64}, result


@call
def gated_delta_rule__segments(rng):
    q, k, v = linear(rng)
    beta, decay = rng.uniform(0, 1, (B, T, N)).astype(np.float32), -np.abs(floats(rng, B, T, N))
    ids = np.array([[0, 0, 0, 0, 1, 1], [2, 3, 3, 3, 3, 3]], np.int32)
    forgotten = np.where(np.diff(ids, axis=1, prepend=ids[:, :1])[..., None] != 0, -np.inf, decay)
    out = of_batch(
        lambda q, k, v, b, d: recur(q, k, v, beta=b, decay=d), normal(q), normal(k), v, beta, forgotten[..., None]
    )[0]
    return (q, k, v, beta, decay, ids), {}, out


@call
def ragged_gated_delta_rule__slots(rng):
    q, k, v = (floats(rng, 5, N, H) for _ in range(3))
    beta, decay = rng.uniform(0, 1, (5, N)).astype(np.float32), -np.abs(floats(rng, 5, N))
    states, slots = floats(rng, 4, N, H, H), np.array([3, 1], np.int32)
    out, after = np.zeros_like(v), states.copy()
    for i, slot in enumerate(slots):
        rows = slice(STARTS[i], STARTS[i + 1])
        out[rows], after[slot] = recur(
            normal(q[rows]), normal(k[rows]), v[rows], beta=beta[rows], decay=decay[rows, :, None], state=states[slot]
        )
    return (q, k, v, beta, decay, states, STARTS, slots), {}, (out, after)


@call
def mean_pooling__whole(rng):
    x = floats(rng, B, T, H)
    return (x,), {}, x.mean(axis=1)


@call
def mean_pooling__packed(rng):
    # Rows behind the last sequence are padding; ejkernel's slices would be shifted at the end of an array without.
    x = floats(rng, 9, H)
    return (x, STARTS), {}, np.stack([x[:4].mean(axis=0), x[4]])
