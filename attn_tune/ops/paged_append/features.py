"""Small problems that are hard to get right."""

import dataclasses
from typing import Any

from attn_tune.ops.paged_append.problem import Problem

# Seven sequences have every length of ``Problem.at_edges`` once, and one without pages.
BATCH, NEW = 7, 5


def features(problem: Problem) -> tuple[Problem, ...]:
    """Variants of a problem on which a config of it must also be right.

    Two or three heads, dtypes, widths, layout, page size and raggedness are the problem's own. Sequences are empty,
    their tokens stand before the first place or behind the last one, or have no page; there is one token, as many as
    sequences, or many.
    """
    small = dataclasses.replace(problem, num_kv_heads=min(max(problem.num_kv_heads, 2), 3))
    sizes = ((BATCH, BATCH * NEW, True), (BATCH, BATCH, True), (1, 1, False), (3, 3 * 67, False))
    return tuple(
        dataclasses.replace(small, batch=batch, tokens=tokens, at_edges=at_edges) for batch, tokens, at_edges in sizes
    )


def samples() -> dict[str, Problem]:
    """Tiny problems by name: each feature alone, then combinations."""
    pages: dict[str, Any] = {"page_size": 8, "at_edges": True}
    float8: dict[str, Any] = {"kv_dtype": "float8_e4m3fn", **pages}
    int8: dict[str, Any] = {"kv_dtype": "int8", **pages}
    return {
        "contiguous": _tiny(),
        "contiguous_at_edges": _tiny(at_edges=True),
        "paged": _tiny(page_size=16),
        "paged_at_edges": _tiny(**pages),
        "one_new_token": _tiny(tokens=BATCH, **pages),
        "one_token_pages": _tiny(page_size=1, at_edges=True),
        "odd_pages": _tiny(page_size=5, at_edges=True),
        "ragged": _tiny(ragged=True, tokens=3 * BATCH + 2, **pages),
        "ragged_contiguous": _tiny(ragged=True, tokens=4 * BATCH + 1, at_edges=True),
        "float32": _tiny(dtype="float32", **pages),
        "float16": _tiny(dtype="float16", **pages),
        "head_major": _tiny(layout="hnd", **pages),
        "head_first": _tiny(layout="head_first", **pages),
        "interleaved": _tiny(layout="interleaved", **pages),
        "one_head": _tiny(num_kv_heads=1, **pages),
        "odd_heads": _tiny(num_kv_heads=5, **pages),
        "wider_values": _tiny(head_dim=16, **pages),
        "odd_head_dim": _tiny(head_dim=24, v_head_dim=24, **pages),
        "float8": _tiny(**float8),
        "float8_tensor": _tiny(kv_scale="tensor", **float8),
        "float8_head": _tiny(kv_scale="head", **float8),
        "float8_token": _tiny(kv_scale="token", **float8),
        "float8_token_interleaved": _tiny(kv_scale="token", layout="interleaved", **float8),
        "float8_token_head_first": _tiny(kv_scale="token", layout="head_first", **float8),
        "float8_token_head_major": _tiny(kv_scale="token", layout="hnd", **float8),
        "float8_float32": _tiny(kv_scale="token", dtype="float32", **float8),
        "int8_tensor": _tiny(kv_scale="tensor", **int8),
        "int8_head": _tiny(kv_scale="head", **int8),
        "int8_token": _tiny(kv_scale="token", **int8),
        "everything": _tiny(
            kv_scale="token", ragged=True, tokens=40, num_kv_heads=3, layout="hnd", head_dim=24, v_head_dim=40, **float8
        ),
    }


def _tiny(
    *, tokens: int = BATCH * NEW, num_kv_heads: int = 2, head_dim: int = 32, v_head_dim: int = 32, **flags: Any
) -> Problem:
    sizes = {"num_kv_heads": num_kv_heads, "head_dim": head_dim, "v_head_dim": v_head_dim}
    return Problem(batch=BATCH, tokens=tokens, **sizes, **flags)
