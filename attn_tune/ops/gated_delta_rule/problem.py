"""The static half of one call of the gated delta rule."""

from dataclasses import dataclass
from typing import ClassVar

from attn_tune.ops.recurrent.problem import BETA_FIELD, RecurrentProblem, fields_of, gate_field

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"

NAME = "gated_delta_rule"
GATES = ("head", "none")


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem(RecurrentProblem):
    """One call, without its arrays; its attributes are those of ``RecurrentProblem``.

    Attributes:
      has_beta: strengths of the update are given, as there.
    """

    NAME: ClassVar = NAME
    VERSION: ClassVar = 1
    FIELDS: ClassVar = fields_of(gate_field(GATES), BETA_FIELD)
    GATES: ClassVar = GATES
    has_delta: ClassVar = True

    has_beta: bool = True
