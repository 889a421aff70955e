"""The knobs of linear attention in chunks."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Flag, Knobs, PowerOfTwo, Range


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk(Knobs):
    """A walk: a program takes the chunks of a head in turn, with some columns of its state."""

    chunk: Annotated[int, PowerOfTwo(16, 128, tried=(32, 64, 128), doc="tokens of a chunk")]
    block_v: Annotated[int, PowerOfTwo(16, 256, tried=(16, 32, 64, 128), doc="columns of the state of a walk")]
    num_warps: Annotated[int, PowerOfTwo(1, 16, tried=(4, 8), doc="warps of 32 threads of a walk")]
    num_stages: Annotated[int, Range(1, 6, tried=(1, 2, 3, 4), doc="chunks in flight to shared memory in a walk")]


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(Walk):
    """The forward: one walk, or several of one sequence at one time."""

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
    turned: Annotated[
        bool,
        Flag(
            doc="a walk holds its state columns by rows, so that products take it from registers and not from shared "
            "memory; of use in 16 bits, with 16 columns or more for each warp"
        ),
    ] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelForwardConfig(ForwardConfig):
    """The forward with a gate a channel, whose chunks are prepared first."""

    prepare_warps: Annotated[int, PowerOfTwo(1, 8, tried=(4, 8), doc="warps of 32 threads that prepare a chunk")]
    prepare_columns: Annotated[
        int, PowerOfTwo(16, 256, tried=(32, 64, 128), doc="channels of the keys at a time in that launch")
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig(Walk):
    """The backward: chunks are walked forwards and backwards at one time, and then differentiated each by itself."""

    gradient_block_v: Annotated[
        int, PowerOfTwo(16, 128, tried=(16, 32, 64), doc="columns of the state at a time, of a chunk's gradients")
    ]
    gradient_warps: Annotated[int, PowerOfTwo(1, 16, tried=(4, 8), doc="warps of 32 threads of a chunk's gradients")]
    gradient_stages: Annotated[
        int, Range(1, 4, tried=(1, 2, 3), doc="such columns in flight to shared memory, of a chunk's gradients")
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelBackwardConfig(BackwardConfig):
    """The backward with a gate a channel, whose chunks are prepared first."""

    prepare_warps: Annotated[int, PowerOfTwo(1, 8, tried=(4, 8), doc="warps of 32 threads that prepare a chunk")]
    prepare_columns: Annotated[
        int, PowerOfTwo(16, 256, tried=(32, 64, 128), doc="channels of the keys at a time in that launch")
    ]
    gradient_columns: Annotated[
        int, PowerOfTwo(16, 256, tried=(32, 64, 128), doc="channels of the keys of a program, of a chunk's gradients")
    ]
