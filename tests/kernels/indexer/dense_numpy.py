"""The indexer in numpy and float64, query by query; shares no code with the op or a kernel."""

import numpy as np


def scores_of(problem, operands):
    q, k, weights = (np.asarray(x, np.float64) for x in (operands.q, operands.k, operands.weights))
    found = np.full((*q.shape[:2], k.shape[1]), -np.inf)
    for b, t in np.ndindex(q.shape[:2]):
        start, end = int(operands.starts[b, t]), int(operands.ends[b, t])
        own = slice(max(start, 0), max(min(end, k.shape[1]), max(start, 0)))
        found[b, t, own] = problem.scale * weights[b, t] @ np.maximum(q[b, t] @ k[b, own].T, 0)
    return found


def assert_right(problem, operands, outputs):
    wanted, found = scores_of(problem, operands), np.asarray(outputs["scores"], np.float64)
    assert outputs["scores"].dtype == np.float32
    np.testing.assert_array_equal(np.isneginf(found), np.isneginf(wanted))
    seen = ~np.isneginf(wanted)
    # Terms of both signs cancel: the error is that of the largest score.
    np.testing.assert_allclose(found[seen], wanted[seen], rtol=1e-5, atol=2e-6 * np.abs(wanted[seen]).max(initial=1))
