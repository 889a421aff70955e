"""The static half of one call of gated linear attention, with a gate for each channel of the keys."""

from dataclasses import dataclass
from typing import ClassVar

from attn_tune.ops.recurrent.problem import RecurrentProblem, fields_of

NAME = "gla"


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem(RecurrentProblem):
    """One call, without its arrays; its attributes are those of ``RecurrentProblem``.

    Attributes:
      gate: the kind of gates, as there; the default is this op's.
    """

    NAME: ClassVar = NAME
    VERSION: ClassVar = 1
    FIELDS: ClassVar = fields_of()
    GATES: ClassVar = ("channel",)
    has_delta: ClassVar = False

    gate: str = "channel"
