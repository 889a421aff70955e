"""The knob of the indexer in plain JAX."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Knobs, PowerOfTwo

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Knobs):
    """Queries are computed ``rows`` at a time, with all of their heads and all keys."""

    rows: Annotated[int, PowerOfTwo(1, 4096, doc="queries whose products with all keys are in memory at a time")]
