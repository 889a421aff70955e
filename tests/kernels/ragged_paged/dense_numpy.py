"""Ragged attention in numpy and float64: each sequence is decoded alone by the numpy of ``paged_decode``."""

import itertools

import numpy as np

from attn_tune.ops.paged_decode.operands import Operands
from tests.kernels.paged_decode.dense_numpy import TOLERANCE, decode, wide


def attend(problem, operands):
    """``out`` and ``lse`` of every query; zero and minus infinity of those that no sequence has."""
    o = operands
    tokens, heads, _ = o.q.shape
    out, lse = np.zeros((tokens, heads, problem.v_head_dim)), np.full((tokens, heads), -np.inf)
    q = np.asarray(o.q)
    if o.q_scale is not None:
        q = wide(q) * np.broadcast_to(wide(o.q_scale), q.shape[:2])[..., None]
    ends = np.asarray(o.cu_q_lens).tolist()
    for row, (begin, end) in enumerate(itertools.pairwise(ends)):
        if begin == end:
            continue
        one = Operands(
            q=q[None, begin:end],
            k=o.k if o.page_table is not None else _only(o.k, problem.layout, row),
            v=None if o.v is None else o.v if o.page_table is not None else _only(o.v, problem.layout, row),
            page_table=None if o.page_table is None else np.asarray(o.page_table)[row : row + 1],
            kv_lens=np.asarray(o.kv_lens)[row : row + 1],
            sinks=o.sinks,
            k_scale=o.k_scale,
            v_scale=o.v_scale,
        )
        # Of a call that is not causal each query is the last one.
        for first in [begin] if problem.causal else range(begin, end):
            stop = end if problem.causal else first + 1
            found = decode(problem, one._replace(q=one.q[:, first - begin : stop - begin]))
            out[first:stop], lse[first:stop] = found[0][0], found[1][0]
    return out, lse


def _only(array, layout, row):
    axis = 1 if layout == "head_first" else 0
    return np.take(np.asarray(array), [row], axis=axis)


def assert_right(problem, operands, outputs):
    out, lse = attend(problem, operands)
    found, found_lse = wide(outputs["out"]), wide(outputs["lse"])
    assert np.isfinite(found).all()
    assert np.linalg.norm(found - out) <= TOLERANCE[problem.dtype] * np.linalg.norm(out)
    # Each row too: one that is wrong is lost in the norm of all.
    off = np.linalg.norm(found - out, axis=-1)
    assert (off <= 8 * TOLERANCE[problem.dtype] * np.maximum(np.linalg.norm(out, axis=-1), 0.1)).all()
    assert not found[np.isneginf(lse)].any()
    np.testing.assert_array_equal(np.isneginf(found_lse), np.isneginf(lse))
    atol, rtol = 3e-5 if problem.dtype == "float32" else 5e-3, 1e-7
    if problem.q_scale != "none" and problem.dtype != "float32":
        # Codes of queries are dequantised to 16 bits where they are not multiplied as they are.
        atol, rtol = 1e-2, 2**-8
    seen = ~np.isneginf(lse)
    np.testing.assert_allclose(found_lse[seen], lse[seen], atol=atol, rtol=rtol)
