"""The knobs of the indexer in Triton."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Knobs, PowerOfTwo, Range

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Knobs):
    """A program scores ``block_k`` keys of ``block_q`` queries, one head of all of them after the other.

    With one query its heads are the rows of a product, and are added up across the tile.
    """

    block_q: Annotated[int, PowerOfTwo(1, 256, tried=(1, 16, 32, 64, 128), doc="queries of a tile: 1, or 16 and more")]
    block_k: Annotated[int, PowerOfTwo(16, 512, tried=(32, 64, 128, 256), doc="keys of a tile")]
    num_warps: Annotated[int, PowerOfTwo(1, 16, tried=(4, 8), doc="warps of 32 threads that share a tile")]
    num_stages: Annotated[
        int, Range(1, 8, tried=(1, 2, 3, 4), doc="heads of queries in flight between device and shared memory")
    ]

    def conflict(self) -> str | None:
        """A product has 16 rows at least."""
        if 1 < self.block_q < 16:
            return f"block_q={self.block_q} is neither 1 nor at least 16"
        return None
