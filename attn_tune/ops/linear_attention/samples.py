"""Tiny problems of linear attention, by name."""

from attn_tune.ops.linear_attention.problem import Problem
from attn_tune.ops.recurrent.features import BOTH, RAGGED, samples_of


def samples() -> dict[str, Problem]:
    """Each feature alone, then combinations."""
    return samples_of(
        Problem,
        no_gate={"gate": "none", **BOTH},
        no_gate_at_edges={"gate": "none", "at_edges": True},
        constant={"gate": "constant", **BOTH},
        constant_at_edges={"gate": "constant", "at_edges": True, **BOTH},
        constant_float32={"gate": "constant", "dtype": "float32", "at_edges": True},
        one_token_constant={"gate": "constant", "length": 1, "batch": 5, "at_edges": True, **BOTH},
        ragged_no_gate={"gate": "none", "at_edges": True, **RAGGED, **BOTH},
        ragged_constant={"gate": "constant", "at_edges": True, **RAGGED, **BOTH},
    )
