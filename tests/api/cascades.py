"""Random cascades, and attention over the same keys in a row, in numpy."""

import functools
from typing import NamedTuple

import jax
import numpy as np

import attn_tune

K, H, P, PAGES = 2, 16, 4, 96


class Case(NamedTuple):
    """Arguments of ``cascade_attention``, and per level the prefix that each sequence has, or -1."""

    query: np.ndarray
    k_pages: np.ndarray
    v_pages: np.ndarray
    kv_lens: np.ndarray
    page_table: np.ndarray
    levels: list
    owners: list


def draw(lengths, levels, *, queries, heads=4, kv_heads=K, seed=0):
    """A case of sequences with ``lengths`` own tokens; a level is ``(lengths of prefixes, sizes of groups or None)``.

    Pages lie in random order; slots behind all tokens, free pages and entries of tables behind the last page are wild.
    """
    rng = np.random.default_rng(seed)
    free = rng.permutation(PAGES).tolist()
    k, v = (rng.standard_normal((PAGES, P, kv_heads, H)).astype(np.float32) for _ in range(2))
    used = np.zeros((PAGES, P), bool)

    def table_of(counts):
        width = max(1, *(-(-n // P) for n in counts)) + 1
        table = np.full((len(counts), width), -1, np.int32)
        for row, count in enumerate(counts):
            for token in range(count):
                if token % P == 0:
                    table[row, token // P] = free.pop()
                used[table[row, token // P], token % P] = True
        return table

    table, prefixes, owners = table_of(lengths), [], []
    for counts, sizes in levels:
        ends = None if sizes is None else np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        each = [len(lengths) // len(counts)] * len(counts) if sizes is None else sizes
        owner = np.repeat(np.arange(len(counts)), each)
        owners.append(np.concatenate([owner, np.full(len(lengths) - len(owner), -1)]))
        prefixes.append(attn_tune.SharedPrefix(table_of(counts), np.array(counts, np.int32), ends))
    k, v = (np.where(used[..., None, None], x, np.nan) for x in (k, v))
    query = rng.standard_normal((*queries, heads, H)).astype(np.float32)
    return Case(query, k, v, np.array(lengths, np.int32), table, prefixes, owners)


def whole(case):
    """The keys and values of each sequence in a row, ``[its tokens, K, H]``."""
    for row, own in enumerate(case.kv_lens):
        spans = [
            (level.page_table[owner[row]], level.kv_lens[owner[row]])
            for level, owner in zip(case.levels, case.owners, strict=True)
            if owner[row] >= 0
        ]
        places = [(table[i // P], i % P) for table, n in (*spans, (case.page_table[row], own)) for i in range(n)]
        shape = (-1, *case.k_pages.shape[2:])
        yield tuple(np.array([x[at] for at in places], np.float64).reshape(shape) for x in (case.k_pages, case.v_pages))


def attended(case, ends=None, *, scale=H**-0.5, cap=None, sinks=None):
    """The output and the lse over whole sequences, in numpy and float64; each query sees the tokens up to its own.

    Args:
      ends: the first query of each sequence, and the end of the last; None where all have as many.
    """
    query = case.query.astype(np.float64)
    rows = query if ends is not None else query.reshape(-1, *query.shape[-2:])
    each = len(rows) // len(case.kv_lens)
    ends = np.arange(len(case.kv_lens) + 1) * each if ends is None else np.asarray(ends)
    out, lse = np.zeros(rows.shape), np.full(rows.shape[:2], -np.inf)
    for row, (k, v) in enumerate(whole(case)):
        group = rows.shape[1] // k.shape[1]
        for at in range(ends[row], ends[row + 1]):
            seen = len(k) - (ends[row + 1] - 1 - at)
            for head in range(rows.shape[1]):
                logits = k[:seen, head // group] @ rows[at, head] * scale
                logits = logits if cap is None else cap * np.tanh(logits / cap)
                shares = np.exp(logits if sinks is None else np.append(logits, sinks[head]))
                if shares.size:
                    lse[at, head] = np.log(shares.sum())
                    out[at, head] = shares[:seen] @ v[:seen, head // group] / shares.sum()
    return out.reshape(query.shape), lse.reshape(query.shape[:-1])


def cascade(case, **options):
    """The output and the lse of ``cascade_attention``, compiled; arrays among the options are constants."""
    call = functools.partial(attn_tune.cascade_attention, return_lse=True, **options)
    return jax.jit(call)(*case[:5], case.levels)


def assert_like(found, wanted):
    """The same output and lse, but for roundings of float32."""
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=5e-6, rtol=5e-6)
