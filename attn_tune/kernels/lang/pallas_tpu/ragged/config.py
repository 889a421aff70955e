"""The knobs of JAX's ragged paged attention for TPU."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Knobs, Range
from attn_tune.kernels.lang.pallas_tpu import knobs

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"

# Each page is a copy that is started by instructions of its own, and all rows of a block are in VMEM.
MOST_PAGES, MOST_QUERIES = 512, 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Knobs):
    """``num_queries_per_block`` queries of any sequences walk ``num_kv_pages_per_block`` pages at a time."""

    num_kv_pages_per_block: Annotated[
        int, Range(1, MOST_PAGES, tried=(2, 4, 8, 16, 32), doc="pages of all key heads in VMEM at a time")
    ]
    num_queries_per_block: Annotated[
        int, Range(1, MOST_QUERIES, tried=(8, 16, 32, 64, 128), doc="queries in VMEM at a time")
    ]
    vmem_limit_kib: Annotated[int | None, knobs.VMEM_LIMIT] = None
