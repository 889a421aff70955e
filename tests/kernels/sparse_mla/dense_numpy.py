"""Sparse latent attention in numpy and float64, index by index; shares no code with the op or a kernel."""

import numpy as np

# Of each output beside the largest value that its row names: roundings of weights and of the output.
TOLERANCE = {"float32": 2e-5, "bfloat16": 2.0**-6, "float16": 2.0**-9}


def attend(problem, operands):
    """``out``, ``lse`` and the largest value of every row."""
    q, kv = (np.asarray(x, np.float64) for x in (operands.q, operands.kv))
    indices = np.asarray(operands.indices)
    sinks = None if operands.sinks is None else np.asarray(operands.sinks, np.float64)
    out = np.zeros((*q.shape[:3], problem.v_head_dim))
    lse, largest = np.full(q.shape[:3], -np.inf), np.zeros(q.shape[:3])
    for b, t, n in np.ndindex(q.shape[:3]):
        named = [i for i in indices[b, t].tolist() if 0 <= i < kv.shape[1]]
        keys = kv[b, named]
        logits = keys @ q[b, t, n] * problem.scale
        every = logits if sinks is None or np.isneginf(sinks[n]) else np.append(logits, sinks[n])
        if not every.size:
            continue
        highest = every.max()
        total = np.exp(every - highest).sum()
        lse[b, t, n] = highest + np.log(total)
        if named:
            values = keys[:, : problem.v_head_dim]
            out[b, t, n] = (np.exp(logits - highest) / total) @ values
            largest[b, t, n] = np.abs(values).max()
    return out, lse, largest


def assert_right(problem, operands, outputs):
    out, lse, largest = attend(problem, operands)
    assert outputs["out"].dtype == problem.dtype
    assert outputs["lse"].dtype == np.float32
    found, found_lse = (np.asarray(outputs[name], np.float64) for name in ("out", "lse"))
    off, limit = np.abs(found - out).max(-1), TOLERANCE[problem.dtype] * largest
    # A NaN is not below the limit.
    wrong = ~(off <= limit)
    assert not wrong.any(), f"{wrong.sum()} of {off.size} rows"
    np.testing.assert_array_equal(np.isneginf(found_lse), np.isneginf(lse))
    seen = ~np.isneginf(lse)
    np.testing.assert_allclose(found_lse[seen], lse[seen], rtol=2e-6, atol=2e-5)
