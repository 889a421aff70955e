"""The knobs of the gated delta rule in chunks: one launch that prepares chunks, and those that walk them."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import PowerOfTwo, Range
from attn_tune.kernels.lang.triton.chunks.config import Chunks

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(Chunks):
    """The forward: chunks are prepared, then each program walks those of a head with some columns of its state."""

    block_v: Annotated[int, PowerOfTwo(16, 128, tried=(16, 32, 64, 128), doc="columns of the state of a program")]
    num_warps: Annotated[int, PowerOfTwo(1, 16, tried=(4, 8), doc="warps of 32 threads that share them")]
    num_stages: Annotated[int, Range(1, 6, tried=(1, 2, 3, 4), doc="chunks in flight to shared memory")]
    segments: Annotated[
        int,
        Range(
            1,
            128,
            tried=(1, 2, 4, 8, 16),
            doc="parts of a sequence that are walked at one time; with more than one, two more launches find the "
            "state at the start of each",
        ),
    ] = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig(Chunks):
    """The backward: chunks are prepared, walked forwards and backwards, and then differentiated each by itself."""

    block_v: Annotated[int, PowerOfTwo(16, 128, tried=(16, 32, 64, 128), doc="columns of the state of a walk")]
    num_warps: Annotated[int, PowerOfTwo(1, 16, tried=(4, 8), doc="warps of 32 threads of a walk")]
    num_stages: Annotated[int, Range(1, 6, tried=(1, 2, 3), doc="chunks in flight to shared memory in a walk")]
    gradient_block_v: Annotated[
        int, PowerOfTwo(16, 128, tried=(16, 32, 64), doc="columns of the state at a time, of a chunk's gradients")
    ]
    gradient_columns: Annotated[
        int, PowerOfTwo(16, 256, tried=(32, 64, 128), doc="channels of the keys of a program, of a chunk's gradients")
    ]
    gradient_warps: Annotated[int, PowerOfTwo(1, 16, tried=(4, 8), doc="warps of 32 threads of a chunk's gradients")]
    gradient_stages: Annotated[
        int, Range(1, 4, tried=(1, 2), doc="such columns in flight to shared memory, of a chunk's gradients")
    ]
