"""A dense float64 attention in numpy with its derivatives written out: what the Triton kernels are held against."""

import numpy as np

# The last multiplication of the dropout bits, by bit 3 of the row and of the column.
LAST_FACTORS = ((0x846CA68B, 0x4ED27881), (0xEF097A51, 0x4F690B93))


def attention(problem, arrays):
    """``out``, ``lse`` and what the derivative needs, in float64. ``arrays`` maps operand names to numpy arrays."""
    p = problem
    q, k, v = (np.asarray(arrays[x], np.float64) for x in ("q", "k", "v"))
    k, v = (np.repeat(x, p.group_size, axis=2) for x in (k, v))
    logits = p.scale * np.einsum("btnh,bsnh->bnts", q, k)
    if p.logits_dtype != "float32":
        import ml_dtypes

        rounded = np.dtype(getattr(ml_dtypes, p.logits_dtype, p.logits_dtype))
        logits = logits.astype(np.float32).astype(rounded).astype(np.float64)
    slope = np.ones_like(logits)
    if p.soft_cap is not None:
        tanh = np.tanh(logits / p.soft_cap)
        logits, slope = p.soft_cap * tanh, 1 - tanh**2
    if arrays.get("bias") is not None:
        logits = logits + np.asarray(arrays["bias"], np.float64)
    logits = np.where(visible(p, arrays), logits, -np.inf)
    joined = logits
    if arrays.get("sinks") is not None:
        sink = np.asarray(arrays["sinks"], np.float64)[None, :, None, None]
        joined = np.concatenate([logits, np.broadcast_to(sink, (*logits.shape[:3], 1))], -1)
    top = joined.max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    total = np.exp(joined - top).sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + top)[..., 0]
    weights = np.exp(logits - top) / np.where(total == 0, 1.0, total)
    factor = dropout_factor(p, arrays.get("dropout"))
    out = np.einsum("bnts,bsnv->btnv", weights * factor, v)
    return out, lse, (q, k, v, weights, factor, slope)


def gradients(problem, arrays, dout, dlse):
    """The derivatives of ``sum(out * dout) + sum(lse * dlse)``, and the ``delta`` that a backward reads."""
    p = problem
    out, lse, (q, k, v, weights, factor, slope) = attention(p, arrays)
    dout = np.asarray(dout, np.float64)
    dweights = np.einsum("btnv,bsnv->bnts", dout, v) * factor
    # Derivative of the softmax taken literally, not through delta; a sink takes its share of the normalisation.
    inner = (weights * dweights).sum(-1, keepdims=True)
    dlogits = weights * (dweights - inner) + weights * np.where(np.isfinite(lse), dlse, 0.0)[..., None]
    grads = {}
    if arrays.get("bias") is not None:
        shape = arrays["bias"].shape
        axes = tuple(i for i in range(4) if shape[i] == 1)
        grads["dbias"] = dlogits.sum(axes, keepdims=True)
    dlogits = dlogits * slope
    grads["dq"] = p.scale * np.einsum("bnts,bsnh->btnh", dlogits, k)
    grads["dk"] = _sum_group(p, p.scale * np.einsum("bnts,btnh->bsnh", dlogits, q))
    grads["dv"] = _sum_group(p, np.einsum("bnts,btnv->bsnv", weights * factor, dout))
    delta = (dout * out).sum(-1).transpose(0, 2, 1) - dlse
    return out, lse, delta, grads


def visible(p, arrays):
    """[B or 1, N or 1, T, S] of booleans."""
    rows = np.arange(p.q_len)[None, None, :, None] + p.kv_len - p.q_len
    columns = np.arange(p.kv_len)[None, None, None, :]
    if p.has_positions:
        rows = arrays["q_positions"][:, None, :, None]
        columns = arrays["kv_positions"][:, None, None, :]
    seen = np.ones((p.batch, 1, p.q_len, p.kv_len), bool)
    if p.causal:
        seen = seen & (columns <= rows)
    if p.window[0] is not None:
        seen = seen & (columns >= rows - p.window[0])
    if p.window[1] is not None:
        seen = seen & (columns <= rows + p.window[1])
    if p.has_segments:
        seen = seen & (arrays["q_segments"][:, None, :, None] == arrays["kv_segments"][:, None, None, :])
    if arrays.get("mask") is not None:
        seen = seen & arrays["mask"]
    return seen


def dropout_factor(p, words):
    """[B, N, T, S]: 0 where a weight is dropped, ``1 / (1 - rate)`` elsewhere; scalar arithmetic in Python integers."""
    if words is None:
        return 1.0
    seed, batch0, head0 = (int(w) for w in words)
    factor = np.zeros((p.batch, p.num_q_heads, p.q_len, p.kv_len))
    for b in range(p.batch):
        h1 = _mix(_mix(seed + 0x9E3779B9) ^ ((b + batch0) * 0x85EBCA6B))
        for n in range(p.num_q_heads):
            h2 = _mix(h1 ^ ((n + head0) * 0xC2B2AE35))
            for i in range(p.q_len):
                h3 = _mix(h2 + i - i // 8 % 2 * 8)
                for j in range(p.kv_len):
                    x = h3 ^ (((j - j // 8 % 2 * 8) * 0x27D4EB2F) & 0xFFFFFFFF)
                    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
                    bits = (x ^ (x >> 15)) * LAST_FACTORS[i // 8 % 2][j // 8 % 2] & 0xFFFFFFFF
                    factor[b, n, i, j] = bits >= round(p.dropout_rate * 2**32)
    return factor / (1 - p.dropout_rate)


def _mix(x):
    x &= 0xFFFFFFFF
    x ^= x >> 16
    x = (x * 0x7FEB352D) & 0xFFFFFFFF
    x ^= x >> 15
    x = (x * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


def _sum_group(p, x):
    return x.reshape(p.batch, p.kv_len, p.num_kv_heads, p.group_size, -1).sum(3)
