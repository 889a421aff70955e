"""The knobs of tokamax's batched ragged paged attention for TPU, named as the library names them."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Flag, Knobs, Multiple, PowerOfTwo, Range
from attn_tune.kernels.lang.pallas_tpu import knobs

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"

MOST_QUERIES, MOST_KEYS = 1024, 8192
# Steps of a schedule are copied by so many.
STEPS = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Knobs):
    """A step takes ``batch_size`` blocks of ``bq_sz`` queries and ``bkv_sz`` keys, each of one sequence."""

    bq_sz: Annotated[int, Range(1, MOST_QUERIES, tried=(16, 32, 64, 128, 256), doc="queries of a block, in VMEM")]
    bq_c_sz: Annotated[int, Range(1, MOST_QUERIES, tried=(16, 32, 64, 128), doc="queries that enter a product")]
    bkv_sz: Annotated[
        int, PowerOfTwo(8, MOST_KEYS, tried=(256, 512, 1024, 2048), doc="keys of all key heads of a block, in VMEM")
    ]
    batch_size: Annotated[int, Range(1, 16, tried=(1, 2, 4, 8), doc="blocks of a step")]
    n_buffer: Annotated[int, Range(2, 4, tried=(2, 3), doc="steps whose queries and keys are in VMEM")]
    fuse_accum: Annotated[
        bool, Flag(doc="every block writes its output, which only the last of a sequence needs, without a branch")
    ] = False
    schedule_steps: Annotated[
        int, Multiple(STEPS, tried=(128, 512), doc="steps whose schedule is in scalar memory")
    ] = STEPS
    vmem_limit_kib: Annotated[int | None, knobs.VMEM_LIMIT] = None

    def conflict(self) -> str | None:
        """The reason that these values cannot go together, or None."""
        if self.bq_c_sz > self.bq_sz:
            return f"bq_c_sz={self.bq_c_sz} must not be above bq_sz={self.bq_sz}"
        return None
