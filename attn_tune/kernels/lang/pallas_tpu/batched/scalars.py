"""The needs of a launch of scalar memory: the page table, and the schedule of some steps."""

from attn_tune.kernels.lang.pallas_tpu.batched.config import Config
from attn_tune.kernels.lang.pallas_tpu.cache_limits import check_tables

_WORD = 4


def check_fit(config: Config, batch: int, width: int, page_size: int) -> None:
    """Check."""


def chunks_of(config: Config, batch: int, tokens: int, most_keys: int) -> int:
    """How many times ``schedule_steps`` there may be, whatever the lengths are."""
    blocks = (tokens // config.bq_sz + batch) * -(-most_keys // config.bkv_sz)
    return blocks // (config.batch_size * config.schedule_steps) + 1
