"""The knobs of the gated delta rule in chunks: one launch that prepares chunks, and those that walk them."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import PowerOfTwo, Range
from attn_tune.kernels.lang.triton.chunks.config import SEGMENTS, Walks

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(Walks):
    """The forward: chunks are prepared, then each program walks those of a head with some columns of its state."""

    segments: Annotated[int, SEGMENTS] = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig(Walks):
    """The backward: chunks are prepared, walked forwards and backwards at one time, and then differentiated."""

    pair_warps: Annotated[int, PowerOfTwo(1, 16, tried=(4, 8), doc="warps of 32 threads of a chunk's pairs of tokens")]
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
    gradient_registers: Annotated[
        int | None,
        Range(
            64,
            255,
            tried=(128, 168),
            doc="registers a thread at most in those launches and that of pairs, so that one more block fits a "
            "multiprocessor; None leaves it to the compiler",
        ),
    ] = None
