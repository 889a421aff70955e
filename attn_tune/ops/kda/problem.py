"""The static half of one call of the delta rule with a gate for each channel of the keys (Kimi delta attention)."""

from dataclasses import dataclass
from typing import ClassVar

from attn_tune.ops.recurrent.problem import BETA_FIELD, RecurrentProblem, fields_of

NAME = "kda"


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem(RecurrentProblem):
    """One call, without its arrays; its attributes are those of ``RecurrentProblem``.

    Attributes:
      gate: the kind of gates, as there; the default is this op's.
      has_beta: strengths of the update are given, as there.
    """

    NAME: ClassVar = NAME
    VERSION: ClassVar = 1
    FIELDS: ClassVar = fields_of(BETA_FIELD)
    GATES: ClassVar = ("channel",)
    has_delta: ClassVar = True

    gate: str = "channel"
    has_beta: bool = True
