"""Configs of the XLA kernels: how many tokens are taken together, and how their equations are solved."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Choice, Knobs, PowerOfTwo

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"

CHUNKS = (8, 16, 32, 64, 128)
_TILES = PowerOfTwo(1, 64, tried=(1, 4, 16), doc="tiles that are prepared together")
_PRODUCTS = Choice(
    ("float32", "working"), doc="operands of products with states and updates: float32, or the dtype of the call"
)
_SOLVE = Choice(
    ("substitution", "doubling"), doc="the equations of a tile: row after row, or by inverses of blocks that double"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(Knobs):
    """``tiles`` tiles of ``chunk`` tokens are prepared together; states go from tile to tile."""

    chunk: Annotated[int, PowerOfTwo(1, 256, tried=CHUNKS, doc="tokens of a tile; 1: token by token")]
    tiles: Annotated[int, _TILES] = 1
    products: Annotated[str, _PRODUCTS] = "float32"


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig(Knobs):
    """``tiles`` tiles of ``chunk`` tokens are a step; the states before each step are kept."""

    chunk: Annotated[int, PowerOfTwo(2, 256, tried=CHUNKS, doc="tokens of a tile")]
    tiles: Annotated[int, _TILES] = 1
    products: Annotated[str, _PRODUCTS] = "float32"


@dataclass(frozen=True, kw_only=True, slots=True)
class DeltaForwardConfig(ForwardConfig):
    """The forward with the delta rule, whose updates are the solution of equations."""

    solve: Annotated[str, _SOLVE] = "doubling"


@dataclass(frozen=True, kw_only=True, slots=True)
class DeltaBackwardConfig(BackwardConfig):
    """The backward with the delta rule, whose updates are the solution of equations."""

    solve: Annotated[str, _SOLVE] = "doubling"


def solve_of(config: ForwardConfig | BackwardConfig) -> str | None:
    """The way in which equations of the delta rule are solved; None without it."""
    return config.solve if isinstance(config, DeltaForwardConfig | DeltaBackwardConfig) else None
