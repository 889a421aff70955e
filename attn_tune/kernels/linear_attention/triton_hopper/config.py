"""The knobs of linear attention on Hopper."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Knobs, Range
from attn_tune.kernels.lang.gluon.chunks.knobs import Groups, Stages

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Knobs):
    """Each program walks the chunks of 64 tokens of a head, or of a segment of a sequence, with some columns."""

    groups: Groups
    num_stages: Stages
    segments: Annotated[
        int,
        Range(
            1,
            128,
            tried=(1, 2, 4, 8, 16, 32),
            doc="parts of a sequence that are walked at one time; with more than one, one more launch finds what each "
            "adds to the state",
        ),
    ] = 1
