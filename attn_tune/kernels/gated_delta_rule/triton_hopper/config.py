"""The knobs of the gated delta rule on Hopper: the launch that prepares chunks, and walks of groups of warps."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Knobs, Range
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


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig(Knobs):
    """Chunks of 64 tokens are prepared, walked forwards and backwards at one time, and then differentiated."""

    prepare_warps: PrepareWarps = 4
    prepare_registers: PrepareRegisters = None
    num_stages: Stages
    gradient_stages: Annotated[
        int, Range(1, 4, tried=(2, 3), doc="times 32 columns of a chunk and head in shared memory, to differentiate it")
    ]
    gradient_programs: Annotated[
        int, Range(1, 2**16, doc="programs that share the chunks of all heads to differentiate; one a multiprocessor")
    ]
