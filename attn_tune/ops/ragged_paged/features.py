"""Small problems that are hard to get right."""

import dataclasses

from attn_tune.ops.ragged_paged.problem import Problem

# Nine sequences have every length of ``Problem.at_edges`` once; of more than one block of any kernel, and no multiple.
BATCH, LENGTH, TOKENS = 9, 389, 150
BITING_CAP = 2.0
# Times the problem's own scale, which no signature says.
OTHER_SCALE = 0.6


def features(problem: Problem) -> tuple[Problem, ...]:
    """Variants of a problem on which a config of it must also be right.

    Flags, dtypes, layout, page size, head dims and groups are the problem's own. Sequences are empty, without new
    tokens, of one token, whole prompts and chunks, with more new tokens than they have; some queries are padding.
    Windows and caps shrink until they bite.
    """
    heads = min(problem.num_kv_heads, 2)
    small = dataclasses.replace(
        problem,
        batch=BATCH,
        num_kv_heads=heads,
        num_q_heads=heads * problem.group_size,
        soft_cap=None if problem.soft_cap is None else min(problem.soft_cap, BITING_CAP),
    )
    page = problem.page_size or 16
    sizes = (
        (LENGTH, TOKENS, {"at_edges": True}),
        (LENGTH, LENGTH, {"workload": "mix", "scale": OTHER_SCALE * problem.scale}),
        (2 * page + 1, page + 3, {"at_edges": True, "batch": 6}),
        (1, 1, {"batch": 1}),
    )
    return tuple(
        dataclasses.replace(small, kv_len=length, tokens=tokens, window=_shrunk(problem.window, length), **more)
        for length, tokens, more in sizes
    )


def samples() -> dict[str, Problem]:
    """Tiny problems by name: each feature alone, then combinations that have gone wrong in real kernels."""
    pages = {"page_size": 8, "at_edges": True}
    float8 = {"kv_dtype": "float8_e4m3fn", **pages}
    return {
        "contiguous": _tiny(),
        "contiguous_ragged": _tiny(at_edges=True),
        "paged": _tiny(page_size=16),
        "paged_at_edges": _tiny(**pages),
        "one_token_pages": _tiny(page_size=1, at_edges=True),
        "odd_pages": _tiny(page_size=5, at_edges=True),
        "large_pages": _tiny(page_size=128, at_edges=True),
        "float32": _tiny(dtype="float32", **pages),
        "float16": _tiny(dtype="float16", **pages),
        "head_major": _tiny(layout="hnd", **pages),
        "head_first": _tiny(layout="head_first", **pages),
        "interleaved": _tiny(layout="interleaved", **pages),
        "group_of_five": _tiny(num_q_heads=10, **pages),
        "one_key_head": _tiny(num_q_heads=8, num_kv_heads=1, **pages),
        "no_groups": _tiny(num_q_heads=2, **pages),
        "wider_values": _tiny(head_dim=16, **pages),
        "odd_head_dim": _tiny(head_dim=24, v_head_dim=24, **pages),
        "prompts": _tiny(tokens=77 * BATCH, page_size=8),
        "decodes": _tiny(tokens=BATCH, page_size=8, workload="mix"),
        "window": _tiny(window=20, **pages),
        "window_zero": _tiny(window=0, has_sinks=True, **pages),
        "window_queries": _tiny(window=11, tokens=90, **pages),
        "soft_cap": _tiny(soft_cap=BITING_CAP, **pages),
        "sinks": _tiny(has_sinks=True, **pages),
        "sinks_window_queries": _tiny(has_sinks=True, window=19, tokens=40, **pages),
        "float8": _tiny(**float8),
        "float8_tensor": _tiny(kv_scale="tensor", **float8),
        "float8_head": _tiny(kv_scale="head", **float8),
        "float8_token": _tiny(kv_scale="token", **float8),
        "float8_token_interleaved": _tiny(kv_scale="token", layout="interleaved", **float8),
        "float8_token_head_first": _tiny(kv_scale="token", layout="head_first", **float8),
        "float8_float32": _tiny(kv_scale="token", dtype="float32", **float8),
        "int8_token": _tiny(kv_dtype="int8", kv_scale="token", **pages),
        "int8_head": _tiny(kv_dtype="int8", kv_scale="head", **pages),
        "uneven": _tiny(workload="exp", page_size=8),
        "mixed": _tiny(workload="mix", page_size=8),
        "everything": _tiny(
            kv_scale="token", tokens=60, num_q_heads=10, window=23, has_sinks=True, soft_cap=BITING_CAP, **float8
        ),
    }


def _tiny(*, head_dim: int = 32, v_head_dim: int = 32, num_q_heads: int = 4, num_kv_heads: int = 2, **flags) -> Problem:
    return Problem(
        **{"batch": BATCH, "tokens": 60, "kv_len": 77, "scale": head_dim**-0.5} | flags,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
    )


def _shrunk(window: int | None, length: int) -> int | None:
    return None if window is None else min(window, length // 3)
