"""The recurrences in numpy and float64: one sequence, one value head and one token after the other."""

import numpy as np


def recurrence(problem, operands):
    """Outputs ``[R, T, N, V]`` and final states ``[B, N, H, V]``; zero for tokens of no sequence."""
    p, o = problem, operands
    q, k, v, g, beta = (None if x is None else np.asarray(x, np.float64) for x in (o.q, o.k, o.v, o.g, o.beta))
    states = np.zeros((p.batch, p.num_value_heads, p.head_dim, p.v_head_dim))
    if o.initial_state is not None:
        states = np.array(o.initial_state, np.float64)
    out = np.zeros((*p.rows, p.num_value_heads, p.v_head_dim))
    for b in range(p.batch):
        row, begin, end = (0, *o.cu_seqlens[b : b + 2]) if p.ragged else (b, 0, p.length)
        for n in range(p.num_value_heads):
            state, head = states[b, n], n // p.group_size
            for t in range(int(begin), int(end)):
                gate = 0.0 if g is None else g[n] if p.gate == "constant" else g[row, t, n]
                state *= np.exp(gate if np.ndim(gate) == 0 else gate[:, None])
                update = v[row, t, n]
                if p.has_delta:
                    update = (update - state.T @ k[row, t, head]) * (1.0 if beta is None else beta[row, t, n])
                state += np.outer(k[row, t, head], update)
                out[row, t, n] = p.scale * state.T @ q[row, t, head]
    return out, states
