"""Small problems that are hard to get right."""

import dataclasses
from typing import Any

from attn_tune.ops.sparse_mla.problem import ANY, Problem

# More than one block of any kernel, and no multiple; five kinds of rows are there more than once.
LENGTH, SELECTED, QUERIES = 389, 149, 6


def features(problem: Problem) -> tuple[Problem, ...]:
    """Variants of a problem on which a config of it must also be right.

    Widths, dtype, sinks and workload are the problem's own. Rows name nothing, a key twice, one key alone, or something
    between or behind indices that name nothing, and keys after the query's own, which no workload promises not to name;
    there are fewer keys than indices, twice the heads, one query, one key.
    """
    small = {"scale": 1.3 * problem.scale, "at_edges": True}
    few, twice = min(SELECTED, problem.num_selected), {"num_q_heads": 2 * problem.num_q_heads}
    return (
        dataclasses.replace(problem, batch=2, q_len=QUERIES, kv_len=LENGTH, num_selected=few, **small),
        dataclasses.replace(problem, batch=1, q_len=QUERIES, kv_len=17, num_selected=few, **small),
        dataclasses.replace(problem, batch=7, q_len=1, kv_len=LENGTH, num_selected=few, **small | twice),
        dataclasses.replace(problem, batch=1, q_len=1, kv_len=1, num_selected=1),
    )


def samples() -> dict[str, Problem]:
    """Tiny problems by name: each feature alone, then combinations."""
    return {
        "causal": _tiny(q_len=40, kv_len=40),
        "later_queries": _tiny(),
        "any": _tiny(workload=ANY),
        "edges": _tiny(at_edges=True),
        "edges_any": _tiny(workload=ANY, at_edges=True),
        "more_indices_than_keys": _tiny(kv_len=20, num_selected=70, at_edges=True),
        "one_index": _tiny(num_selected=1),
        "one_query": _tiny(q_len=1, batch=3),
        "many_heads": _tiny(num_q_heads=130, at_edges=True),
        "sinks": _tiny(has_sinks=True),
        "sinks_edges": _tiny(has_sinks=True, at_edges=True),
        "without_rope": _tiny(head_dim=32, at_edges=True),
        "odd_widths": _tiny(head_dim=60, v_head_dim=40, at_edges=True),
        "deepseek": _tiny(head_dim=576, v_head_dim=512, num_q_heads=16, q_len=3, batch=1, at_edges=True),
        "float16": _tiny(dtype="float16", at_edges=True),
        "float32": _tiny(dtype="float32", at_edges=True),
        "everything": _tiny(dtype="float32", has_sinks=True, workload=ANY, num_q_heads=5, at_edges=True),
    }


def _tiny(
    *,
    batch: int = 2,
    q_len: int = 7,
    kv_len: int = 101,
    num_q_heads: int = 6,
    head_dim: int = 48,
    v_head_dim: int = 32,
    num_selected: int = 37,
    **more: Any,
) -> Problem:
    return Problem(
        batch=batch,
        q_len=q_len,
        kv_len=kv_len,
        num_q_heads=num_q_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        num_selected=num_selected,
        scale=0.2,
        **more,
    )
