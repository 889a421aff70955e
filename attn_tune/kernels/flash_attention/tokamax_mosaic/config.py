"""The knobs of tokamax's Mosaic GPU attention on Hopper: one config per launch."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Choice, Flag, Multiple, Range
from attn_tune.kernels.lang.libraries import mosaic

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"

_STAGES = "tiles in flight between device memory and shared memory"


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(mosaic.Launch):
    """The forward: two warpgroups of ``block_q`` rows each walk the keys."""

    block_q: Annotated[
        int,
        Multiple(mosaic.WARPGROUP_ROWS, tried=(64, 128), doc="query rows of a warpgroup's tile"),
    ]
    num_stages: Annotated[int, Range(1, 8, tried=(2, 3, 4), doc=_STAGES)]
    persistent: Annotated[
        bool, Flag(doc="one block a multiprocessor, which takes one tile of rows after the other")
    ] = False
    split_k: Annotated[
        int,
        Range(
            1,
            64,
            tried=(1, 2, 4, 8, 16),
            doc="parts that the keys are cut into, whose results are combined",
        ),
    ] = 1
    fold_q_sequence_heads: Annotated[bool, Flag(doc="the query heads of one key head become rows")] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class _BackwardLaunch(mosaic.Launch):
    num_stages: Annotated[int, Range(1, 8, tried=(1, 2, 3), doc=_STAGES)]
    compute_warpgroups: Annotated[
        int,
        Choice(
            (1, 2, 3),
            tried=(1, 2),
            doc="warpgroups that compute; each owns a block, and they share what passes",
        ),
    ] = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class DqConfig(_BackwardLaunch):
    """The gradients of the query and of a bias: rows stay, keys pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DkvConfig(_BackwardLaunch):
    """The key and value gradients: keys stay, rows pass."""


type Launch = ForwardConfig | DqConfig | DkvConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig:
    """The backward: its two launches, searched one by one."""

    dq: DqConfig
    dkv: DkvConfig
