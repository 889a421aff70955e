"""The recurrences in numpy and float64: one sequence and one token after the other."""

import numpy as np


def recurrence(problem, operands):
    """Outputs ``[R, T, N, V]`` and final states ``[B, N, H, V]``; zero for tokens of no sequence."""
    p, o = problem, operands
    q, k, v, g, beta = (None if x is None else np.asarray(x, np.float64) for x in (o.q, o.k, o.v, o.g, o.beta))
    states = np.zeros((p.batch, p.num_value_heads, p.head_dim, p.v_head_dim))
    if o.initial_state is not None:
        states = np.array(o.initial_state, np.float64)
    out = np.zeros((*p.rows, p.num_value_heads, p.v_head_dim))
    ends = np.asarray(o.cu_seqlens).tolist() if p.ragged else None
    for b in range(p.batch):
        row, begin, end = (0, *ends[b : b + 2]) if ends else (b, 0, p.length)
        state = states[b]
        for t in range(begin, end):
            queries, keys = (x[row, t].repeat(p.group_size, 0) for x in (q, k))
            if g is not None:
                gates = g if p.gate == "constant" else g[row, t]
                # One number for each value head, or for each channel of its keys.
                state *= np.exp(gates).reshape(p.num_value_heads, -1, 1)
            update = v[row, t]
            if p.has_delta:
                strength = 1.0 if beta is None else beta[row, t][:, None]
                update = strength * (update - np.einsum("nhv,nh->nv", state, keys))
            state += keys[:, :, None] * update[:, None]
            out[row, t] = p.scale * np.einsum("nhv,nh->nv", state, queries)
    return out, states
