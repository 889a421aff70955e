"""The knobs of the Triton kernels of block-sparse attention: one config per launch."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from attn_tune.kernels.knobs import Flag
from attn_tune.kernels.lang.triton.tiles import Tile


@dataclass(frozen=True, kw_only=True, slots=True)
class _Listed(Tile):
    """Tiles of any size: a tile of the launch may be a part of a block of the mask, or hold several."""

    longest_first: Annotated[
        bool,
        Flag(doc="programs with the most tiles start first, in each head; else in the order of rows"),
    ] = True


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(_Listed):
    """The forward: a program owns ``block_q`` rows and walks the listed tiles of ``block_k`` keys."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DqConfig(_Listed):
    """The query gradient: a program owns ``block_q`` rows and walks the listed tiles of ``block_k`` keys."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DkvConfig(_Listed):
    """The key and value gradients: a program owns ``block_k`` keys and walks the listed tiles of ``block_q`` rows."""

    owns_keys: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig:
    """The backward: its two launches, searched one by one."""

    dq: DqConfig
    dkv: DkvConfig
