"""Tiny problems of the delta rule with a gate for each channel, by name."""

from attn_tune.ops.kda.problem import Problem
from attn_tune.ops.recurrent.features import BOTH, RAGGED, samples_of


def samples() -> dict[str, Problem]:
    """Each feature alone, then combinations."""
    return samples_of(
        Problem,
        no_beta={"has_beta": False, **BOTH},
        ragged_no_beta={"has_beta": False, "at_edges": True, **RAGGED, **BOTH},
    )
