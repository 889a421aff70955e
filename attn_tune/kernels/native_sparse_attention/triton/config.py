"""The knobs of attention to selected blocks in Triton: one config per launch."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Knobs, PowerOfTwo, Range

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Walk(Knobs):
    """A program owns the query heads of a group at one token, and gathers ``block_k`` keys of its blocks at a time."""

    block_k: Annotated[
        int, PowerOfTwo(16, 256, tried=(16, 32, 64, 128), doc="keys of a tile: a part of a block, or several blocks")
    ]
    num_warps: Annotated[int, PowerOfTwo(1, 16, tried=(1, 2, 4, 8), doc="warps of 32 threads that share a tile")]
    num_stages: Annotated[
        int, Range(1, 8, tried=(1, 2, 3, 4, 5), doc="tiles of keys in flight between device and shared memory")
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(_Walk):
    """The forward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DqConfig(_Walk):
    """The query gradient."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DkvConfig(Knobs):
    """The key and value gradients: a program owns keys of a block and walks the queries that name it.

    The queries of a block that are more than ``share`` are shared by several programs, whose sums are added up.
    """

    block_q: Annotated[int, PowerOfTwo(16, 256, tried=(16, 32, 64, 128), doc="rows of a tile: query heads of a group")]
    block_k: Annotated[int, PowerOfTwo(16, 256, tried=(32, 64, 128), doc="keys of a tile: a block or a part of one")]
    share: Annotated[int, PowerOfTwo(16, 65536, tried=(256, 1024, 4096), doc="queries that one program walks at most")]
    num_warps: Annotated[int, PowerOfTwo(1, 16, tried=(4, 8), doc="warps of 32 threads that share a tile")]
    num_stages: Annotated[
        int, Range(1, 8, tried=(1, 2, 3, 4), doc="tiles of rows in flight between device and shared memory")
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig:
    """The backward: its two launches, searched one by one."""

    dq: DqConfig
    dkv: DkvConfig
