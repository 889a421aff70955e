"""The knobs of sparse latent attention in Triton."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Knobs, PowerOfTwo, Range

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Knobs):
    """A program owns ``block_n`` heads of a query and gathers its keys ``block_k`` at a time.

    With ``splits`` the indices of a query are shared by so many programs, whose parts are merged afterwards.
    """

    block_n: Annotated[int, PowerOfTwo(16, 128, tried=(16, 32, 64, 128), doc="query heads of a tile")]
    block_k: Annotated[int, PowerOfTwo(16, 128, tried=(16, 32, 64), doc="keys that are gathered at a time")]
    num_warps: Annotated[int, PowerOfTwo(1, 16, tried=(4, 8, 16), doc="warps of 32 threads that share a tile")]
    num_stages: Annotated[
        int, Range(1, 8, tried=(1, 2, 3, 4, 5), doc="tiles of keys in flight between device and shared memory")
    ]
    splits: Annotated[
        int, PowerOfTwo(1, 64, tried=(1, 2, 4, 8, 16, 32), doc="programs that share the indices of a query")
    ] = 1
