"""The tiles of one flash-attention launch in Triton, forward and backward."""

from dataclasses import dataclass
from typing import ClassVar

from attn_tune.kernels.lang.triton.tiles import Tile


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(Tile):
    """The forward: a program owns ``block_q`` rows and walks the keys ``block_k`` at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DqConfig(Tile):
    """The query gradient: a program owns ``block_q`` rows and walks the keys ``block_k`` at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DkvConfig(Tile):
    """The key and value gradients: a program owns ``block_k`` keys and walks the rows ``block_q`` at a time."""

    owns_keys: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True, slots=True)
class DbiasConfig(Tile):
    """The bias gradient: derived from the problem, not searched (``backward_dbias.dbias_config``)."""
