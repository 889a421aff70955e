"""Small problems that are hard to get right."""

import dataclasses
from typing import Any

from attn_tune.ops.native_sparse_attention.problem import RANDOM, SAME, Problem

# Of blocks of 64: several of them, and no multiple. Other blocks have lengths in proportion.
_QUERIES, _KEYS, _BLOCK = 149, 389, 64
_MOST_NAMED = 5


def features(problem: Problem) -> tuple[Problem, ...]:
    """Variants of a problem on which a config of it must also be right.

    Widths, group size, blocks and dtype are the problem's own. Rows name nothing, a block twice, blocks that are not
    seen, and every block; the last block is not full; there are fewer queries than keys, one query, and two sequences
    and key heads that name other blocks.
    """
    heads = min(2, problem.num_kv_heads)
    few = {"num_kv_heads": heads, "num_q_heads": heads * problem.group_size, "scale": 1.3 * problem.scale}
    few["num_selected"] = min(_MOST_NAMED, problem.num_selected)
    factor = max(1, problem.block_size // _BLOCK)
    queries, keys = factor * _QUERIES, factor * _KEYS
    small = dataclasses.replace(problem, **few, batch=min(2, problem.batch), at_edges=True)
    two = {"workload": RANDOM, "num_kv_heads": 2, "num_q_heads": 2 * problem.group_size}
    if problem.is_packed:
        variants = [
            dataclasses.replace(small, batch=5, q_len=keys, kv_len=keys),
            dataclasses.replace(small, batch=1, q_len=queries, kv_len=queries, has_lse_gradient=True, **two),
        ]
        return tuple(variants)
    return (
        dataclasses.replace(small, q_len=queries, kv_len=queries, has_lse_gradient=True),
        dataclasses.replace(small, batch=2, q_len=queries, kv_len=keys, **two),
        dataclasses.replace(small, batch=5, q_len=1, kv_len=keys),
        # More than a program of keys walks at a time.
        dataclasses.replace(small, batch=2, q_len=keys, kv_len=keys, workload=SAME),
    )


def samples() -> dict[str, Problem]:
    """Tiny problems by name: each feature alone, then combinations."""
    return {
        "local": _tiny(),
        "random": _tiny(workload=RANDOM),
        "same": _tiny(workload=SAME),
        "edges": _tiny(at_edges=True),
        "edges_random": _tiny(at_edges=True, workload=RANDOM),
        "lse_gradient": _tiny(at_edges=True, has_lse_gradient=True),
        "longer_keys": _tiny(q_len=23, kv_len=110, at_edges=True),
        "longer_queries": _tiny(q_len=70, kv_len=41, at_edges=True),
        "one_query": _tiny(q_len=1, kv_len=75),
        # Without a gradient of the lse those of query and key would be zero.
        "one_key": _tiny(q_len=1, kv_len=1, num_selected=1, has_lse_gradient=True),
        "one_block_named": _tiny(num_selected=1),
        "more_named_than_blocks": _tiny(q_len=40, kv_len=40, num_selected=7),
        "large_blocks": _tiny(block_size=128, q_len=150, kv_len=150, num_selected=2),
        "group_of_one": _tiny(num_q_heads=2, at_edges=True),
        "group_of_twelve": _tiny(num_q_heads=24, at_edges=True),
        "group_of_twenty": _tiny(num_q_heads=20, num_kv_heads=1, at_edges=True),
        "wider_values": _tiny(head_dim=16, v_head_dim=48, at_edges=True),
        "odd_width": _tiny(head_dim=24, v_head_dim=40, at_edges=True),
        "wide": _tiny(head_dim=192, v_head_dim=128, q_len=33, kv_len=33),
        "packed": _tiny(is_packed=True, batch=3),
        "packed_edges": _tiny(is_packed=True, batch=5, at_edges=True, has_lse_gradient=True),
        "float16": _tiny(dtype="float16", at_edges=True),
        "float32": _tiny(dtype="float32", at_edges=True),
        "everything": _tiny(
            dtype="float32",
            is_packed=True,
            batch=4,
            q_len=120,
            kv_len=120,
            num_q_heads=6,
            v_head_dim=40,
            workload=RANDOM,
            at_edges=True,
            has_lse_gradient=True,
        ),
    }


def _tiny(
    *,
    batch: int = 2,
    q_len: int = 90,
    kv_len: int = 90,
    num_q_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 32,
    v_head_dim: int = 32,
    num_selected: int = 4,
    block_size: int = 16,
    **more: Any,
) -> Problem:
    return Problem(
        batch=batch,
        q_len=q_len,
        kv_len=kv_len,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        num_selected=num_selected,
        block_size=block_size,
        scale=0.2,
        **more,
    )
