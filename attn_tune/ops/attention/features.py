"""Small problems that are hard to get right."""

import dataclasses

from attn_tune.ops.attention.problem import Problem
from attn_tune.ops.fields.unusual_values import BITING_CAP, BITING_DROPOUT, LENGTHS, OTHER_SCALE


def features(problem: Problem) -> tuple[Problem, ...]:
    """Odd lengths of several tiles, unequal both ways (rows masked wholly under a causal mask), with its flags.

    Values that no signature says are other than usual in some: scale, cap and rate of dropout. A problem of one
    sequence, key head or head a group has one variant more, with two of each.
    """
    small, several = (dataclasses.replace(problem, **_heads(problem, least)) for least in (1, 2))
    # A call may come with any of these values; its row answers all the same.
    unusual = dataclasses.replace(
        small,
        scale=OTHER_SCALE * problem.scale,
        soft_cap=None if problem.soft_cap is None else min(problem.soft_cap, BITING_CAP),
        dropout_rate=BITING_DROPOUT if problem.dropout_rate > 0 else 0.0,
    )
    problems = [*zip((unusual, small, small, unusual), LENGTHS, strict=True)]
    problems += [(several, LENGTHS[1])] if several != small else []
    return tuple(dataclasses.replace(one, q_len=t, kv_len=s) for one, (t, s) in problems)


def _heads(problem: Problem, least: int) -> dict[str, int]:
    batch, kv_heads = (max(least, min(n, 2)) for n in (problem.batch, problem.num_kv_heads))
    group = max(least, problem.num_q_heads // problem.num_kv_heads)
    return {"batch": batch, "num_kv_heads": kv_heads, "num_q_heads": kv_heads * group}


def samples() -> dict[str, Problem]:
    """Tiny problems by name: each feature alone, then all together."""
    small = Problem(
        batch=2,
        q_len=37,
        kv_len=37,
        num_q_heads=2,
        num_kv_heads=2,
        head_dim=16,
        v_head_dim=16,
        scale=0.25,
        dtype="float32",
    )
    # No softmax in bfloat16: the baseline's is float32, so the rule allows less than such a softmax errs.
    changes = {
        "plain": {},
        "bfloat16": {"dtype": "bfloat16"},
        "causal": {"causal": True},
        "causal_longer_keys": {"causal": True, "kv_len": 45},
        "causal_longer_queries": {"causal": True, "kv_len": 19},
        "one_query": {"q_len": 1},
        "window": {"window": (9, 5)},
        "gqa": {"num_q_heads": 4},
        "wider_values": {"v_head_dim": 32},
        "mask": {"mask_dims": "bnts"},
        "mask_padding": {"mask_dims": "b11s"},
        "bias": {"bias_dims": "bnts"},
        "bias_shared_batch": {"bias_dims": "1nts"},
        "soft_cap": {"soft_cap": 2.0},
        "sinks": {"has_sinks": True},
        "dropout": {"dropout_rate": 0.25},
        "everything": {
            "causal": True,
            "window": (20, None),
            "kv_len": 45,
            "num_q_heads": 4,
            "mask_dims": "b11s",
            "bias_dims": "1nts",
            "has_sinks": True,
            "soft_cap": 2.0,
            "dropout_rate": 0.25,
        },
    }
    return {name: dataclasses.replace(small, **change) for name, change in changes.items()}
