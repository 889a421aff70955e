"""Small problems that are hard to get right."""

import dataclasses
from typing import Any

from attn_tune.ops.merge_attention.problem import Problem


def features(problem: Problem) -> tuple[Problem, ...]:
    """Variants of a problem on which a config of it must also be right.

    Parts, width and dtypes are the problem's own. Parts saw nothing, one of them or all, with outputs that are not
    numbers; they weigh the same, or one outweighs the others by so much that their weights vanish. Rows are as many as
    fill no block, or one.
    """
    small = dataclasses.replace(problem, num_q_heads=min(problem.num_q_heads, 3))
    return (
        dataclasses.replace(small, num_rows=131, at_edges=True),
        dataclasses.replace(small, num_rows=7, num_q_heads=2, at_edges=True),
        dataclasses.replace(small, num_rows=1, num_q_heads=1),
    )


def samples() -> dict[str, Problem]:
    """Tiny problems by name: each feature alone, then combinations."""
    return {
        "two_parts": _tiny(),
        "at_edges": _tiny(at_edges=True),
        "three_parts": _tiny(num_parts=3, at_edges=True),
        "four_parts": _tiny(num_parts=4, at_edges=True),
        "one_row": _tiny(num_rows=1, num_q_heads=1),
        "odd_width": _tiny(v_head_dim=40, at_edges=True),
        "narrow": _tiny(v_head_dim=3, at_edges=True),
        "wide": _tiny(v_head_dim=512, num_rows=9, at_edges=True),
        "odd_heads": _tiny(num_q_heads=5, at_edges=True),
        "float32": _tiny(dtype="float32", at_edges=True),
        "float16": _tiny(dtype="float16", at_edges=True),
        "narrowed": _tiny(dtype="float32", out_dtype="bfloat16", at_edges=True),
        "widened": _tiny(out_dtype="float32", at_edges=True),
        "everything": _tiny(num_parts=4, dtype="float32", out_dtype="float16", v_head_dim=24, at_edges=True),
    }


def _tiny(*, num_rows: int = 37, num_q_heads: int = 4, v_head_dim: int = 32, **more: Any) -> Problem:
    return Problem(num_rows=num_rows, num_q_heads=num_q_heads, v_head_dim=v_head_dim, **more)
