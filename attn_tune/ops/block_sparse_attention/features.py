"""Small problems that are hard to get right."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from attn_tune.ops.block_sparse_attention.problem import Problem
from attn_tune.ops.fields import granularity
from attn_tune.ops.fields.unusual_values import BITING_CAP, LENGTHS, OTHER_SCALE
from attn_tune.ops.flash_attention.features import few_heads, shrunk

# The lengths are for blocks up to this; those of larger blocks are as many times longer.
_BLOCK = 128


def features(problem: Problem) -> tuple[Problem, ...]:
    """Variants of a problem on which a config of it must also be right.

    Lengths are odd, no multiples of a block, and unequal both ways. Rows of blocks have no block, one, or all; keys are
    in no list; blocks are listed that causality and windows hide. One variant has the mask of the workload; two have
    another scale and a gradient of the lse, in one the lse is not read, one has twice the sequences and key heads; of
    a problem of one sequence or head one has two of each.
    """
    small = dataclasses.replace(
        problem,
        **few_heads(problem, 1),
        soft_cap=None if problem.soft_cap is None else min(problem.soft_cap, BITING_CAP),
        at_edges=True,
    )
    several = dataclasses.replace(small, **few_heads(problem, 2))
    unusual = dataclasses.replace(small, scale=OTHER_SCALE * problem.scale, has_lse_gradient=True, needs_lse=True)
    drawn = dataclasses.replace(unusual, at_edges=False)
    wide = dataclasses.replace(small, scale=OTHER_SCALE * problem.scale, **few_heads(problem, 1, times=2))
    unread = dataclasses.replace(small, needs_lse=False)
    variants = [unusual, drawn, small, wide, unread, *([several] if several != small else [])]
    factor = max(1, problem.mask_block_q // _BLOCK, problem.mask_block_k // _BLOCK)
    lengths = [tuple(n if n == 1 else factor * n for n in pair) for pair in (*LENGTHS, *LENGTHS[:2])]
    return tuple(
        dataclasses.replace(one, q_len=t, kv_len=s, window=shrunk(problem.window, s))
        for one, (t, s) in zip(variants, lengths, strict=False)
    )


def coarser(problem: Problem) -> Iterator[Problem]:
    """Variants of a small problem from the least changed to the most: coarser lengths, then coarser blocks too.

    Blocks grow by one factor to at least 128 rows and keys, and lengths by the same factor to an odd number.
    """
    yield from granularity.coarser(problem)
    factor = _BLOCK // min(_BLOCK, problem.mask_block_q, problem.mask_block_k)
    if factor > 1:
        q_len, kv_len = (n if n == 1 else factor * n - 1 for n in (problem.q_len, problem.kv_len))
        sizes = {"mask_block_q": factor * problem.mask_block_q, "mask_block_k": factor * problem.mask_block_k}
        wide = dataclasses.replace(problem, q_len=q_len, kv_len=kv_len, **sizes)
        yield wide
        yield from granularity.coarser(wide)


def samples() -> dict[str, Problem]:
    """Tiny problems by name: each feature alone, then combinations."""
    gqa: dict[str, Any] = {"num_q_heads": 4, "num_kv_heads": 2}
    return {
        "random": _tiny(at_edges=False),
        "documents_causal": _tiny(at_edges=False, workload="documents", causal=True),
        "local_causal": _tiny(at_edges=False, workload="local", causal=True),
        "full": _tiny(at_edges=False, workload="full"),
        "edges": _tiny(),
        "edges_float32": _tiny(dtype="float32", precision="highest"),
        "edges_float16": _tiny(dtype="float16"),
        "edges_causal": _tiny(causal=True),
        "unequal_blocks": _tiny(mask_block_q=16, mask_block_k=64, causal=True),
        "wide_rows": _tiny(mask_block_q=64, mask_block_k=16),
        "large_blocks": _tiny(mask_block_q=256, mask_block_k=256, q_len=300, kv_len=520),
        "longer_keys": _tiny(q_len=37, kv_len=150, causal=True),
        "longer_queries": _tiny(q_len=150, kv_len=37, causal=True),
        "one_query": _tiny(q_len=1, kv_len=130),
        "one_block": _tiny(q_len=20, kv_len=17),
        "of_batch": _tiny(block_dims="b1"),
        "of_heads": _tiny(block_dims="1n", **gqa),
        "of_both": _tiny(block_dims="bn", causal=True, **gqa),
        "gqa": _tiny(causal=True, **gqa),
        "mqa_of_heads": _tiny(block_dims="1n", num_q_heads=4, num_kv_heads=1),
        "window": _tiny(window=(21, 9)),
        "causal_window": _tiny(causal=True, window=(40, None)),
        "segments": _tiny(has_segments=True),
        "segments_causal": _tiny(has_segments=True, causal=True, q_len=90, kv_len=140),
        "lengths": _tiny(has_segments=True, has_lengths=True, **gqa),
        "soft_cap": _tiny(soft_cap=BITING_CAP),
        "scale": _tiny(scale=0.5),
        "lse_gradient": _tiny(has_lse_gradient=True, causal=True, **gqa),
        "wider_values": _tiny(head_dim=16, v_head_dim=32),
        "odd_width": _tiny(head_dim=24, v_head_dim=40, causal=True),
        "everything": _tiny(
            dtype="float32",
            precision="highest",
            block_dims="bn",
            mask_block_k=16,
            causal=True,
            window=(50, None),
            q_len=101,
            kv_len=133,
            has_segments=True,
            soft_cap=BITING_CAP,
            has_lse_gradient=True,
            head_dim=16,
            v_head_dim=32,
            **gqa,
        ),
    }


def _tiny(
    *,
    q_len: int = 150,
    kv_len: int = 150,
    head_dim: int = 32,
    v_head_dim: int | None = None,
    num_q_heads: int = 2,
    num_kv_heads: int = 2,
    scale: float | None = None,
    mask_block_q: int = 32,
    mask_block_k: int = 32,
    at_edges: bool = True,
    **flags: Any,
) -> Problem:
    return Problem(
        batch=2,
        q_len=q_len,
        kv_len=kv_len,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        v_head_dim=head_dim if v_head_dim is None else v_head_dim,
        scale=head_dim**-0.5 if scale is None else scale,
        mask_block_q=mask_block_q,
        mask_block_k=mask_block_k,
        at_edges=at_edges,
        **flags,
    )
