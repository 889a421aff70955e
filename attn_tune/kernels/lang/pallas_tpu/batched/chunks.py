"""The room of a schedule in HBM, which nothing checks when it is filled."""

from attn_tune.kernels.lang.pallas_tpu.batched.config import Config


def chunks_of(config: Config, batch: int, tokens: int, most_keys: int) -> int:
    """The most chunks of ``schedule_steps`` that a schedule may have, whatever the lengths are.

    One more chunk is written when the last one is full.

    Args:
      most_keys: the tokens that the pages of a sequence hold.
    """
    blocks = (tokens // config.bq_sz + batch) * -(-most_keys // config.bkv_sz)
    return blocks // (config.batch_size * config.schedule_steps) + 1
