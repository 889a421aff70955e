"""The knobs of the gated delta rule on Hopper: the launch that prepares chunks, and walks of groups of warps."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Knobs
from attn_tune.kernels.lang.gluon.chunks.knobs import Groups, Stages
from attn_tune.kernels.lang.triton.chunks.config import SEGMENTS, PrepareRegisters, PrepareWarps

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Knobs):
    """Chunks of 64 tokens are prepared, then each program walks those of a head with some columns of its state."""

    prepare_warps: PrepareWarps = 4
    prepare_registers: PrepareRegisters = None
    groups: Groups
    num_stages: Stages
    segments: Annotated[int, SEGMENTS] = 1
