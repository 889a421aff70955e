"""Small problems that are hard to get right."""

import dataclasses
from typing import Any

from attn_tune.ops.indexer.problem import ALL, Problem

# More than one block of any kernel, and no multiple of one.
LENGTH, QUERIES = 293, 147


def features(problem: Problem) -> tuple[Problem, ...]:
    """Variants of a problem on which a config of it must also be right.

    Heads, width and dtype are the problem's own. Ranges are empty, of one key, backwards, beyond both ends, and from
    the middle; there are more queries than keys, one query, one key.
    """
    small = {"scale": 1.3 * problem.scale, "at_edges": True}
    return (
        dataclasses.replace(problem, batch=2, q_len=QUERIES, kv_len=LENGTH, **small),
        dataclasses.replace(problem, batch=1, q_len=19, kv_len=8, workload=ALL, **small),
        dataclasses.replace(problem, batch=9, q_len=1, kv_len=LENGTH, **small),
        dataclasses.replace(problem, batch=1, q_len=1, kv_len=1),
    )


def samples() -> dict[str, Problem]:
    """Tiny problems by name: each feature alone, then combinations."""
    return {
        "causal": _tiny(q_len=101),
        "later_queries": _tiny(),
        "all": _tiny(workload=ALL),
        "edges": _tiny(at_edges=True),
        "edges_all": _tiny(workload=ALL, at_edges=True),
        "more_queries_than_keys": _tiny(q_len=30, kv_len=8, at_edges=True),
        "one_query": _tiny(q_len=1, batch=3),
        "one_head": _tiny(num_q_heads=1, at_edges=True),
        "odd_heads": _tiny(num_q_heads=5, at_edges=True),
        "odd_width": _tiny(head_dim=40, at_edges=True),
        "deepseek": _tiny(num_q_heads=64, head_dim=128, batch=1, at_edges=True),
        "float16": _tiny(dtype="float16", at_edges=True),
        "float32": _tiny(dtype="float32", at_edges=True),
        "everything": _tiny(dtype="float32", workload=ALL, num_q_heads=3, head_dim=24, at_edges=True),
    }


def _tiny(
    *, batch: int = 2, q_len: int = 13, kv_len: int = 101, num_q_heads: int = 4, head_dim: int = 32, **more: Any
) -> Problem:
    return Problem(
        batch=batch, q_len=q_len, kv_len=kv_len, num_q_heads=num_q_heads, head_dim=head_dim, scale=0.3, **more
    )
