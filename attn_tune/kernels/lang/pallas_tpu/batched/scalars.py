"""The scalar memory of a launch: the page table, and the schedule of some steps."""

from attn_tune.kernels.lang.pallas_tpu.batched.config import Config
from attn_tune.kernels.lang.pallas_tpu.memory import round_up

DECIDES_NO_CODE = "what is refused; a row holds its config"

_WORD, _TILE = 4, 1024


def tables(batch: int, width: int) -> dict[str, int]:
    """Bytes of the page table, which is flat here, and of lengths and ends."""
    return {"page table": _bytes(batch * width), "lengths": 4 * _bytes(batch + 1)}


def schedule(config: Config, page_size: int) -> dict[str, int]:
    """Bytes of the schedule of ``schedule_steps`` steps.

    A block has five numbers, two of its queries, three of each page and four of new keys; a step has five of its own.
    """
    pages = -(-config.bkv_sz // page_size)
    blocks = config.schedule_steps * config.batch_size
    counts = (*[blocks] * 5, 2 * blocks, 3 * pages * blocks, 4 * blocks, *[config.schedule_steps] * 5)
    return {"schedule": sum(map(_bytes, counts))}


def _bytes(count: int) -> int:
    """Bytes of so many numbers, in whole tiles."""
    return _WORD * (round_up(count, _TILE) if count > _TILE else round_up(count, 128))
