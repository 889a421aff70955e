"""The knob of decoding in plain JAX."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Knobs, PowerOfTwo

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Knobs):
    """All sequences walk their keys together, ``step`` at a time, to the end of the longest one."""

    step: Annotated[int, PowerOfTwo(1, 2**20, doc="keys of every sequence that are gathered at a time")]
