"""Native sparse attention and its gradients in float64, one query of one key head after the other."""

import itertools

import numpy as np


def named_tokens(problem, indices, query, borders):
    """The keys that one row of entries names, those of a block that is named twice two times."""
    first = 0
    if borders is not None:
        within = [(begin, end) for begin, end in itertools.pairwise(borders) if begin <= query < end]
        if not within:
            return np.zeros(0, int)
        first = within[0][0]
    position = query + problem.offset
    found = []
    for block in indices.astype(np.int64):
        begin = first + block * problem.block_size
        found += [token for token in range(begin, begin + problem.block_size) if block >= 0 and token <= position]
        if len(found) > 10**5:
            raise AssertionError("a block that is beyond the query's own is walked")
    return np.array(found, int)


def answers(problem, operands, dout=None, dlse=None):
    """``out`` and ``lse``; with cotangents ``dq``, ``dk`` and ``dv`` too."""
    q, k, v = (np.asarray(x, np.float64) for x in operands[:3])
    indices = np.asarray(operands.indices)
    indices = np.where(np.abs(indices.astype(np.int64)) > problem.kv_len, -1, indices)
    borders = None if operands.cu_seqlens is None else np.asarray(operands.cu_seqlens)
    out = np.zeros((*q.shape[:3], v.shape[3]))
    lse = np.full(q.shape[:3], -np.inf)
    dq, dk, dv = (np.zeros_like(x) for x in (q, k, v))
    for b, t, kv_head in np.ndindex(*indices.shape[:3]):
        tokens = named_tokens(problem, indices[b, t, kv_head], t, borders)
        if not tokens.size:
            continue
        group = slice(kv_head * problem.group_size, (kv_head + 1) * problem.group_size)
        keys, values = k[b, tokens, kv_head], v[b, tokens, kv_head]
        logits = problem.scale * q[b, t, group] @ keys.T
        highest = logits.max(1, keepdims=True)
        terms = np.exp(logits - highest)
        weights = terms / terms.sum(1, keepdims=True)
        out[b, t, group] = weights @ values
        lse[b, t, group] = highest[:, 0] + np.log(terms.sum(1))
        if dout is None:
            continue
        given = np.asarray(dout, np.float64)[b, t, group]
        slopes = given @ values.T - (given * out[b, t, group]).sum(1, keepdims=True)
        slopes = weights * (slopes + np.asarray(dlse, np.float64)[b, t, group, None])
        dq[b, t, group] = problem.scale * slopes @ keys
        np.add.at(dk[b, :, kv_head], tokens, problem.scale * slopes.T @ q[b, t, group])
        np.add.at(dv[b, :, kv_head], tokens, weights.T @ given)
    found = {"out": out, "lse": lse}
    return found if dout is None else found | {"dq": dq, "dk": dk, "dv": dv}


def distance(found, exact):
    """The largest difference, as a share of the largest number; infinite where minus infinity is elsewhere."""
    found = np.asarray(found, np.float64)
    same = np.isneginf(found) == np.isneginf(exact)
    if found.shape != exact.shape or not same.all():
        return np.inf
    finite = np.isfinite(exact)
    return np.abs(found[finite] - exact[finite]).max(initial=0.0) / np.abs(exact[finite]).max(initial=1e-30)
