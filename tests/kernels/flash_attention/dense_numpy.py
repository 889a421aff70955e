"""Dense attention and its gradients written out in numpy float64: the oracle of these tests."""

import numpy as np

from attn_tune.ops.flash_attention.operands import BackwardInputs, Operands
from attn_tune.ops.flash_attention.problem import Problem


def as_float64(x):
    """A float64 numpy copy of any array, or None."""
    return None if x is None else np.asarray(x).astype(np.float64)


def counted(o: Operands, x) -> np.ndarray:
    """Keys or values with zeros behind the lengths, where anything may be."""
    x = as_float64(x)
    if o.kv_lengths is not None:
        x[np.arange(x.shape[1]) >= np.asarray(o.kv_lengths)[:, None]] = 0.0
    return x


def attention(p: Problem, o: Operands) -> dict[str, np.ndarray]:
    """``out`` and ``lse``, with the ``weights`` before dropout, the dropout ``factor`` and the ``capped`` logits."""
    q, k, v = as_float64(o.q), *(np.repeat(counted(o, x), p.group_size, axis=2) for x in (o.k, o.v))
    logits = p.scale * np.einsum("btnh,bsnh->bnts", q, k)
    if p.soft_cap is not None:
        logits = p.soft_cap * np.tanh(logits / p.soft_cap)
    capped = logits
    if o.bias is not None:
        logits = logits + as_float64(o.bias)
    logits = np.where(visible(p, o), logits, -np.inf)
    if o.sinks is not None:
        sink = np.broadcast_to(as_float64(o.sinks)[None, :, None, None], (*logits.shape[:3], 1))
        logits = np.concatenate([logits, sink], axis=3)
    with np.errstate(divide="ignore"):
        peak = logits.max(axis=3)
        peak = np.where(np.isinf(peak), 0.0, peak)
        total = np.exp(logits - peak[..., None]).sum(axis=3)
        lse = peak + np.log(total)
    weights = np.exp(logits - peak[..., None]) / np.where(total > 0, total, 1.0)[..., None]
    weights = weights[..., : p.kv_len]
    factor = 1.0 if o.dropout is None else kept(p, o) / (1.0 - p.dropout_rate)
    out = np.einsum("bnts,bsnv->btnv", weights * factor, v)
    return {"out": out, "lse": lse, "weights": weights, "factor": factor, "capped": capped}


def gradients(p: Problem, inputs: BackwardInputs, dlse=None) -> dict[str, np.ndarray]:
    """``dq``, ``dk``, ``dv``, ``dbias`` and ``dsinks`` of ``sum(out * dout) + sum(lse * dlse)``."""
    o, dout = inputs.operands, as_float64(inputs.dout)
    a = attention(p, o)
    q, k, v = as_float64(o.q), *(np.repeat(counted(o, x), p.group_size, axis=2) for x in (o.k, o.v))
    dv = np.einsum("bnts,btnv->bsnv", a["weights"] * a["factor"], dout)
    dweights = np.einsum("btnv,bsnv->bnts", dout, v) * a["factor"]
    delta = (a["weights"] * dweights).sum(axis=3)
    if dlse is not None:
        delta = delta - dlse
    dlogits = a["weights"] * (dweights - delta[..., None])
    grads = {}
    if o.bias is not None:
        axes = tuple(i for i, d in enumerate(p.bias_dims or "") if d == "1")
        grads["dbias"] = dlogits.sum(axis=axes, keepdims=True) if axes else dlogits
    if p.soft_cap is not None:
        dlogits = dlogits * (1.0 - (a["capped"] / p.soft_cap) ** 2)
    dk = p.scale * np.einsum("bnts,btnh->bsnh", dlogits, q)
    grads["dq"] = p.scale * np.einsum("bnts,bsnh->btnh", dlogits, k)
    grads["dk"], grads["dv"] = (x.reshape(*x.shape[:2], p.num_kv_heads, p.group_size, -1).sum(axis=3) for x in (dk, dv))
    return grads


def visible(p: Problem, o: Operands) -> np.ndarray:
    """``[B, N, T, S]``: who sees whom, one condition after the other as the contract states them."""
    seen = np.ones((p.batch, p.num_q_heads, p.q_len, p.kv_len), bool)
    at = np.broadcast_to(np.arange(p.q_len) + p.kv_len - p.q_len, (p.batch, p.q_len))
    key = np.broadcast_to(np.arange(p.kv_len), (p.batch, p.kv_len))
    if o.q_positions is not None:
        at, key = np.asarray(o.q_positions), np.asarray(o.kv_positions)
    at, key = at[:, None, :, None], key[:, None, None, :]
    left, right = p.window
    if p.causal:
        seen &= key <= at
    if left is not None:
        seen &= at - left <= key
    if right is not None:
        seen &= key <= at + right
    if o.q_segments is not None:
        q_ids, kv_ids = np.asarray(o.q_segments), np.asarray(o.kv_segments)
        seen &= q_ids[:, None, :, None] == kv_ids[:, None, None, :]
    if o.mask is not None:
        seen &= np.asarray(o.mask)
    return seen


def kept(p: Problem, o: Operands) -> np.ndarray:
    """``[B, N, T, S]``: which weights dropout keeps, in Python integers' arithmetic."""
    seed, first_batch, first_head = (int(x) for x in np.asarray(o.dropout))
    b, n, i, j = np.ogrid[: p.batch, : p.num_q_heads, : p.q_len, : p.kv_len]
    h = _scramble(np.uint64((seed + 0x9E3779B9) % 2**32))
    h = _scramble(h ^ _low((b + first_batch).astype(np.uint64) * np.uint64(0x85EBCA6B)))
    h = _scramble(h ^ _low((n + first_head).astype(np.uint64) * np.uint64(0xC2B2AE35)))
    # Squares of 2 by 2 weights, 8 rows and 8 columns apart, have one hash and differ in its last multiplication.
    right, below = j // 8 % 2, i // 8 % 2
    h = _scramble(_low(h + (i - 8 * below).astype(np.uint64)))
    h = h ^ _low((j - 8 * right).astype(np.uint64) * np.uint64(0x27D4EB2F))
    h = _low((h ^ (h >> np.uint64(16))) * np.uint64(0x7FEB352D))
    factors = np.array([0x846CA68B, 0x4ED27881, 0xEF097A51, 0x4F690B93], np.uint64)
    bits = _low((h ^ (h >> np.uint64(15))) * factors[2 * below + right])
    return bits >= np.uint64(round(p.dropout_rate * 2**32))


def _low(x):
    return x & np.uint64(0xFFFFFFFF)


def _scramble(x):
    x = x ^ (x >> np.uint64(16))
    x = _low(x * np.uint64(0x7FEB352D))
    x = x ^ (x >> np.uint64(15))
    x = _low(x * np.uint64(0x846CA68B))
    return x ^ (x >> np.uint64(16))
