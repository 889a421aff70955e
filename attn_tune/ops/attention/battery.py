"""Small problems that are hard to get right."""

import dataclasses

from attn_tune.ops.attention.problem import Problem


def battery(problem: Problem) -> tuple[Problem, ...]:
    """Odd lengths, unequal both ways (fully masked rows under a causal mask), with the problem's flags.

    A problem of one sequence, key head or head a group has one variant more, with two of each.
    """
    small, several = (dataclasses.replace(problem, **_heads(problem, least)) for least in (1, 2))
    problems = [(small, lengths) for lengths in ((37, 37), (19, 45), (45, 19), (1, 33))]
    problems += [(several, (19, 45))] if several != small else []
    return tuple(dataclasses.replace(one, q_len=t, kv_len=s) for one, (t, s) in problems)


def _heads(problem: Problem, least: int) -> dict[str, int]:
    batch, kv_heads = (max(least, min(n, 2)) for n in (problem.batch, problem.num_kv_heads))
    group = max(least, problem.num_q_heads // problem.num_kv_heads)
    return {"batch": batch, "num_kv_heads": kv_heads, "num_q_heads": kv_heads * group}
