"""Merges of parts of attention in numpy and float64, row by row; shares no code with the op or a kernel."""

import numpy as np

# Of each output beside the largest element of its row: one rounding, and some more of float32 sums.
TOLERANCE = {"float32": 4e-6, "bfloat16": 2.0**-8, "float16": 2.0**-11}


def merge(operands):
    """``out`` and ``lse`` of every row."""
    outs = [np.asarray(out, np.float64) for out, _ in operands.parts]
    logs = [np.asarray(lse, np.float64) for _, lse in operands.parts]
    out, lse = np.zeros(outs[0].shape), np.full(logs[0].shape, -np.inf)
    for row in np.ndindex(lse.shape):
        seen = [(o[row], log[row]) for o, log in zip(outs, logs, strict=True) if log[row] != -np.inf]
        if not seen:
            continue
        highest = max(log for _, log in seen)
        total = sum(np.exp(log - highest) for _, log in seen)
        lse[row] = highest + np.log(total)
        out[row] = sum(o * (np.exp(log - highest) / total) for o, log in seen)
    return out, lse


def assert_right(problem, operands, outputs):
    out, lse = merge(operands)
    assert outputs["out"].dtype == problem.merged_dtype
    assert outputs["lse"].dtype == np.float32
    found, found_lse = np.asarray(outputs["out"], np.float64), np.asarray(outputs["lse"], np.float64)
    assert np.isfinite(found).all()
    largest = np.max([np.abs(np.nan_to_num(np.asarray(x, np.float64))).max(-1) for x, _ in operands.parts], axis=0)
    off = np.abs(found - out).max(-1)
    limit = TOLERANCE[problem.merged_dtype] * np.maximum(largest, 1e-3)
    assert (off <= limit).all(), f"{(off > limit).sum()} of {off.size} rows"
    assert not found[np.isneginf(lse)].any()
    np.testing.assert_array_equal(np.isneginf(found_lse), np.isneginf(lse))
    seen = ~np.isneginf(lse)
    np.testing.assert_allclose(found_lse[seen], lse[seen], rtol=3e-7, atol=2e-6)
