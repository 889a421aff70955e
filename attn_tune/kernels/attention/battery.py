"""Small problems that are hard to get right."""

import dataclasses

from attn_tune.kernels.attention.problem import Problem


def battery(problem: Problem) -> tuple[Problem, ...]:
    """Odd lengths, unequal both ways (fully masked rows under a causal mask), with the problem's flags."""
    small = dataclasses.replace(
        problem,
        batch=min(problem.batch, 2),
        num_kv_heads=min(problem.num_kv_heads, 2),
        num_q_heads=min(problem.num_kv_heads, 2) * (problem.num_q_heads // problem.num_kv_heads),
    )
    lengths = ((37, 37), (19, 45), (45, 19), (1, 33))
    return tuple(dataclasses.replace(small, q_len=t, kv_len=s) for t, s in lengths)
