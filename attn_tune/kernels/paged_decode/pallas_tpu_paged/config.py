"""The knobs of JAX's paged attention for TPU."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Choice, Flag, Knobs, Range
from attn_tune.kernels.lang.pallas_tpu import knobs

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"

# Each page is a copy that is started by instructions of its own.
MOST_PAGES = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Knobs):
    """``pages_per_compute_block`` pages of one head are fetched while those before them are computed."""

    pages_per_compute_block: Annotated[
        int, Range(1, MOST_PAGES, tried=(1, 2, 4, 8, 16, 32, 64, 128), doc="pages of one key head in VMEM at a time")
    ]
    inline_seq_dim: Annotated[
        bool, Flag(doc="whether blocks of a sequence are a loop of one grid step, or a grid step each")
    ] = True
    megacore_mode: Annotated[
        str | None,
        Choice(("kv_head", "batch"), doc="what the two cores of a v4 or v5p share; None uses one of them"),
    ] = None
    vmem_limit_kib: Annotated[int | None, knobs.VMEM_LIMIT] = None
