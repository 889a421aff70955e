"""Tiny problems of the gated delta rule, by name."""

from attn_tune.ops.gated_delta_rule.problem import Problem
from attn_tune.ops.recurrent.features import BOTH, RAGGED, samples_of


def samples() -> dict[str, Problem]:
    """Each feature alone, then combinations."""
    return samples_of(
        Problem,
        no_gate={"gate": "none"},
        no_beta={"has_beta": False},
        delta_rule={"gate": "none", "at_edges": True, **BOTH},
        neither={"gate": "none", "has_beta": False, **BOTH},
        ragged_delta_rule={"gate": "none", "has_beta": False, "at_edges": True, **RAGGED, **BOTH},
    )
