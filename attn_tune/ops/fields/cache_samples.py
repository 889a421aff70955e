"""Small problems of attention over a cache that are hard to get right, for any queries."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from attn_tune.ops.fields.cache import LATENT
from attn_tune.ops.fields.cache_problem import CacheAttention
from attn_tune.ops.fields.unusual_values import BITING_CAP

PAGES: Mapping[str, Any] = {"page_size": 8, "at_edges": True}
FLOAT8: Mapping[str, Any] = {"kv_dtype": "float8_e4m3fn", **PAGES}


def shrunk[P: CacheAttention](problem: P, kv_len: int, **changes: Any) -> P:
    """The problem with two key heads and sequences up to ``kv_len``; its window and cap shrink until they bite."""
    heads = min(problem.num_kv_heads, 2)
    small = {
        "kv_len": kv_len,
        "num_kv_heads": heads,
        "num_q_heads": heads * problem.group_size,
        "soft_cap": None if problem.soft_cap is None else min(problem.soft_cap, BITING_CAP),
        "window": None if problem.window is None else min(problem.window, kv_len // 3),
    }
    return dataclasses.replace(problem, **small | changes)


def two_key_heads(problem: CacheAttention) -> dict[str, int]:
    """The heads of a problem with two key heads, or one of latents."""
    heads = 1 if problem.layout == LATENT else 2
    return {"num_kv_heads": heads, "num_q_heads": heads * problem.group_size}


def unsaid_window[P: CacheAttention](problem: P, kv_len: int, **changes: Any) -> tuple[P, ...]:
    """A shrunk problem, with a window that hides nothing of sequences as long as expected: no signature says it.

    None where the problem has a window of its own.
    """
    return (shrunk(problem, kv_len, window=kv_len, **changes),) if problem.window is None else ()


def samples_of[P](kind: Callable[..., P], sizes: Mapping[str, Any]) -> tuple[Callable[..., P], dict[str, P]]:
    """A function that makes tiny problems of ``sizes`` with some flags; by name, those with one feature each."""

    def tiny(*, head_dim: int = 32, **flags: Any) -> P:
        heads = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": head_dim, "v_head_dim": 32}
        return kind(**heads | {"kv_len": 77, "scale": head_dim**-0.5} | dict(sizes) | flags)

    return tiny, {
        "contiguous": tiny(),
        "contiguous_ragged": tiny(at_edges=True),
        "paged": tiny(page_size=16),
        "paged_at_edges": tiny(**PAGES),
        "one_token_pages": tiny(page_size=1, at_edges=True),
        "odd_pages": tiny(page_size=5, at_edges=True),
        "large_pages": tiny(page_size=128, at_edges=True),
        "float32": tiny(dtype="float32", **PAGES),
        "float16": tiny(dtype="float16", **PAGES),
        "head_major": tiny(layout="hnd", **PAGES),
        "head_first": tiny(layout="head_first", **PAGES),
        "interleaved": tiny(layout="interleaved", **PAGES),
        "group_of_five": tiny(num_q_heads=10, **PAGES),
        "one_key_head": tiny(num_q_heads=8, num_kv_heads=1, **PAGES),
        "no_groups": tiny(num_q_heads=2, **PAGES),
        "wider_values": tiny(head_dim=16, **PAGES),
        "odd_head_dim": tiny(head_dim=24, v_head_dim=24, **PAGES),
        "window": tiny(window=20, **PAGES),
        "window_zero": tiny(window=0, has_sinks=True, **PAGES),
        "soft_cap": tiny(soft_cap=BITING_CAP, **PAGES),
        "sinks": tiny(has_sinks=True, **PAGES),
        "float8": tiny(**FLOAT8),
        "float8_tensor": tiny(kv_scale="tensor", **FLOAT8),
        "float8_head": tiny(kv_scale="head", **FLOAT8),
        "float8_token": tiny(kv_scale="token", **FLOAT8),
        "float8_token_interleaved": tiny(kv_scale="token", layout="interleaved", **FLOAT8),
        "float8_token_head_first": tiny(kv_scale="token", layout="head_first", **FLOAT8),
        "float8_float32": tiny(kv_scale="token", dtype="float32", **FLOAT8),
        "int8_token": tiny(kv_dtype="int8", kv_scale="token", **PAGES),
        "int8_head": tiny(kv_dtype="int8", kv_scale="head", **PAGES),
        "uneven": tiny(workload="exp", page_size=8),
    }
