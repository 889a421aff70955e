"""The static half of one call of linear attention without the delta rule, and with at most one gate a head."""

from dataclasses import dataclass
from typing import ClassVar

from attn_tune.ops.recurrent.problem import RecurrentProblem, fields_of, gate_field

NAME = "linear_attention"
GATES = ("head", "constant", "none")


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem(RecurrentProblem):
    """One call, without its arrays; its attributes are those of ``RecurrentProblem``."""

    NAME: ClassVar = NAME
    VERSION: ClassVar = 1
    FIELDS: ClassVar = fields_of(gate_field(GATES))
    GATES: ClassVar = GATES
    has_delta: ClassVar = False
