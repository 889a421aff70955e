"""The knobs of sparse latent attention for Hopper."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Knobs, PowerOfTwo, Range
from attn_tune.kernels.lang.gluon.latents import HalvesAhead


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Knobs):
    """A program owns 64 heads of a query and gathers its keys 64 at a time.

    With ``splits`` the indices of a query are shared by so many programs, whose parts are merged afterwards.
    """

    num_stages: Annotated[int, Range(2, 8, tried=(2, 3, 4), doc="tiles of keys in shared memory")] = 2
    splits: Annotated[
        int, PowerOfTwo(1, 64, tried=(1, 2, 4, 8, 16, 32), doc="programs that share the indices of a query")
    ] = 1
    halves_ahead: HalvesAhead = 0
