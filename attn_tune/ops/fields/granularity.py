"""Coarser variants of a small problem, for kernels that cannot take its odd lengths."""

import dataclasses
import math
from collections.abc import Iterator

from attn_tune.ops.fields.attention import AttentionProblem

# Tokens. The coarsest is the longest tile of any kernel.
STEPS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
# Tokens by which the odd length of a step is below a multiple: the last tile of a kernel that masks is nearly full.
_BELOW = 3
# Channels that matrix units want, and sequences that one step of a kernel takes.
_CHANNELS, _SEQUENCES = 64, 8


def coarser[P: AttentionProblem](problem: P) -> Iterator[P]:
    """Distinct variants of ``problem`` from the least changed to the most, without itself.

    First its lengths alone grow: of each step to an odd length just below a multiple, then to the multiple, and where
    they differ one alone before both: a kernel that cannot take odd numbers of queries may take odd numbers of keys. A
    single query or key stays single as long as anything else helps. Then its head dims grow by one factor to multiples
    of 64, then its batch to a multiple of 8, each again with every step. Whether there are more queries than keys,
    fewer or as many is always kept: it decides the meaning of masks.
    """
    seen = {problem}
    factor = _CHANNELS // math.gcd(problem.head_dim, problem.v_head_dim, _CHANNELS)
    dims = {"head_dim": factor * problem.head_dim, "v_head_dim": factor * problem.v_head_dim}
    batch = {"batch": _up(problem.batch, _SEQUENCES)}
    for base in (
        problem,
        dataclasses.replace(problem, **dims),
        dataclasses.replace(problem, **batch),
        dataclasses.replace(problem, **dims, **batch),
    ):
        for keep_one in (True, False):
            for lengths in ((base.q_len, base.kv_len), *_lengths(base, keep_one)):
                variant = dataclasses.replace(base, q_len=lengths[0], kv_len=lengths[1])
                if variant not in seen:
                    seen.add(variant)
                    yield variant


def _lengths(problem: AttentionProblem, keep_one: bool) -> Iterator[tuple[int, int]]:
    lengths = problem.q_len, problem.kv_len
    for step in STEPS:
        for below in (_BELOW, 0):
            q_len, kv_len = (n if keep_one and n == 1 else _longer(n, step, below) for n in lengths)
            if problem.q_len == problem.kv_len:
                yield q_len, kv_len
                continue
            has_more_keys = problem.q_len < problem.kv_len
            for q, kv in ((q_len, problem.kv_len), (problem.q_len, kv_len)):
                if q != kv and (q < kv) == has_more_keys:
                    yield q, kv
            if has_more_keys:
                yield q_len, kv_len if kv_len > q_len else q_len + step
            else:
                yield q_len if q_len > kv_len else kv_len + step, kv_len


def _longer(length: int, step: int, below: int) -> int:
    """The least length that is ``below`` less than a multiple of ``step`` and at least ``length``."""
    return _up(length + below, step) - below


def _up(length: int, step: int) -> int:
    return -(-length // step) * step
