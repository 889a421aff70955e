"""The knob of attention to selected blocks in plain JAX."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Knobs, PowerOfTwo

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Knobs):
    """Queries are computed ``rows`` at a time, one after the other within a program."""

    rows: Annotated[int, PowerOfTwo(1, 4096, doc="queries that are computed at a time")]
