"""Tiny problems of gated linear attention, by name."""

from attn_tune.ops.gla.problem import Problem
from attn_tune.ops.recurrent.features import samples_of


def samples() -> dict[str, Problem]:
    """Each feature alone, then combinations."""
    return samples_of(Problem)
