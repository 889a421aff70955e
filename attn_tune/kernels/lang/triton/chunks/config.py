"""The knobs of the launch that prepares chunks, each by itself, and of those that walk them."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Knobs, PowerOfTwo, Range

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"

# Of a forward that can cut sequences.
SEGMENTS = Range(
    1,
    128,
    tried=(1, 2, 4, 8, 16),
    doc="parts of a sequence that are walked at one time; with more than one, two more launches find the state at the "
    "start of each",
)


PrepareWarps = Annotated[
    int, PowerOfTwo(1, 8, tried=(2, 4, 8), doc="warps that prepare a chunk: solve its triangular system")
]
PrepareRegisters = Annotated[
    int | None,
    Range(
        64,
        255,
        tried=(168, 128),
        doc="registers a thread at most in that launch, so that one more block fits a multiprocessor; None leaves "
        "it to the compiler",
    ),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunks(Knobs):
    """Chunks, and the launch that prepares each of them by itself."""

    chunk: Annotated[int, PowerOfTwo(16, 64, tried=(32, 64), doc="tokens of a chunk")]
    prepare_warps: PrepareWarps
    prepare_registers: PrepareRegisters = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Walks(Chunks):
    """Chunks that are prepared, and walks: a program takes those of a head in turn, with some columns of its state."""

    block_v: Annotated[int, PowerOfTwo(16, 128, tried=(16, 32, 64, 128), doc="columns of the state of a walk")]
    num_warps: Annotated[int, PowerOfTwo(1, 16, tried=(4, 8), doc="warps of 32 threads of a walk")]
    num_stages: Annotated[int, Range(1, 6, tried=(1, 2, 3, 4), doc="chunks in flight to shared memory in a walk")]
