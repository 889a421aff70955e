"""Decoding in numpy and float64, one row after the other; shares no code with the op, its reference or a kernel."""

import jax.numpy as jnp
import numpy as np

_ORDER = {"nhd": (0, 1, 2), "hnd": (0, 2, 1), "head_first": (1, 2, 0), "interleaved": (0, 1, 2), "latent": (0, 1, 2)}


def wide(array):
    return None if array is None else np.asarray(array).astype(np.float32).astype(np.float64)


def tokens(array, layout, table, row):
    """``[tokens, heads, ...]`` of one sequence; ``table`` is None for a contiguous cache."""
    page, slot, head = _ORDER[layout]
    ordered = np.moveaxis(array, (page, slot, head), (0, 1, 2))
    pages = [row] if table is None else [min(max(int(i), 0), len(ordered) - 1) for i in table[row]]
    return np.concatenate([ordered[i] for i in pages])


def decode(problem, operands):
    """``out`` and ``lse`` of every row."""
    p, o = problem, operands
    q, k, v = wide(o.q), wide(o.k), wide(o.v)
    table = None if o.page_table is None else np.asarray(o.page_table)
    lengths, sinks = np.asarray(o.kv_lens), wide(o.sinks)
    batch, q_len, heads, _ = q.shape
    out = np.zeros((batch, q_len, heads, p.v_head_dim))
    lse = np.full((batch, q_len, heads), -np.inf)
    for row in range(batch):
        keys, values = _dequantised(p, o, k, v, table, row)
        group = heads // keys.shape[1]
        # Impossible lengths count as none, or as all that the cache holds.
        length = min(max(int(lengths[row]), 0), len(keys))
        for query in range(q_len):
            last = length - q_len + query
            first = 0 if p.window is None else max(0, last - p.window)
            for head in range(heads):
                seen = slice(first, max(first, last + 1))
                logits = keys[seen, head // group] @ q[row, query, head] * p.scale
                if p.soft_cap is not None:
                    logits = p.soft_cap * np.tanh(logits / p.soft_cap)
                has_sink = sinks is not None and sinks[head] > -np.inf
                powers = np.append(logits, sinks[head]) if has_sink else logits
                if powers.size:
                    top = powers.max()
                    total = np.exp(powers - top).sum()
                    lse[row, query, head] = top + np.log(total)
                    out[row, query, head] = np.exp(logits - top) / total @ values[seen, head // group]
    return out, lse


def _dequantised(p, o, k, v, table, row):
    if p.kv_scale == "block":
        keys = unpacked(p, tokens(np.asarray(o.k), p.layout, table, row))
        return keys, keys[..., : p.v_head_dim]
    keys = tokens(k, p.layout, table, row)
    if p.layout == "latent":
        values = keys[..., : p.v_head_dim]
    else:
        values = keys[:, 1::2] if v is None else tokens(v, p.layout, table, row)
        keys = keys[:, 0::2] if v is None else keys
    if p.kv_scale == "none":
        return keys, values
    scales = []
    for scale in (wide(o.k_scale), wide(o.v_scale)):
        if p.kv_scale == "token":
            scale = tokens(scale, p.layout, table, row)[..., None]
        elif p.kv_scale == "head":
            scale = scale[:, None]
        scales.append(scale)
    return keys * scales[0], values * scales[1]


def unpacked(p, rows):
    """Keys of tokens that are bytes: codes, a scale for each 128 of them, and numbers of 16 bits."""
    width = p.v_head_dim
    values = wide(rows[..., :width].copy().view(jnp.float8_e4m3fn))
    scales = wide(rows[..., width : width + width // 32].copy().view(np.float32))
    rest = wide(rows[..., width + width // 32 :].copy().view(jnp.dtype(p.dtype)))
    return np.concatenate([values * np.repeat(scales, 128, axis=-1), rest], axis=-1)


TOLERANCE = {"float32": 3e-5, "float16": 3e-3, "bfloat16": 1.2e-2}


def assert_right(problem, operands, outputs):
    out, lse = decode(problem, operands)
    found, found_lse = wide(outputs["out"]), wide(outputs["lse"])
    assert np.isfinite(found).all()
    assert np.linalg.norm(found - out) <= TOLERANCE[problem.dtype] * np.linalg.norm(out)
    # Rows that see nothing are zero to the bit.
    assert not found[np.isneginf(lse)].any()
    np.testing.assert_array_equal(np.isneginf(found_lse), np.isneginf(lse))
    seen = ~np.isneginf(lse)
    np.testing.assert_allclose(found_lse[seen], lse[seen], atol=3e-5 if problem.dtype == "float32" else 5e-3)
