"""The config of the library's kernel, built from knobs and shapes."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from tokamax._src.ops.batched_rpa.kernel import configs

from attn_tune.kernels.lang.pallas_tpu.batched.config import Config


@dataclass(frozen=True, eq=True)
class Settings(configs.RpaConfigs):
    """The library's settings, of which some follow from other things than those it asks.

    Attributes:
      steps: the steps whose schedule is in scalar memory at a time; the library takes a share of it.
      accumulates: every block writes its output; the library does so in decoding alone.
    """

    steps: int = 0
    accumulates: bool = False

    @property
    def max_steps_ub(self) -> int:
        """The steps whose schedule is in scalar memory at a time."""
        return self.steps

    @property
    def bkv_p_new(self) -> int:
        """Copies of new keys in a block: the fewest there can be, all of which are empty."""
        return 1

    @property
    def fuse_accum(self) -> bool:
        """Whether every block writes its output."""
        return self.accumulates

    def with_scale(self, scale: Any) -> "Settings":
        """These settings with a factor of all logits, which the kernel's body may only know when it runs."""
        return dataclasses.replace(self, serve=dataclasses.replace(self.serve, scale_k=scale))


def settings(
    config: Config,
    *,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    page_size: int,
    batch: int,
    width: int,
    tokens: int,
    q_dtype: Any,
    kv_dtype: Any,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    chunks: int,
) -> Settings:
    """The settings of a launch that reads all keys from the cache, writes none, and sums in float32.

    Args:
      width: the pages of a sequence.
      window: tokens that a query sees, its own included.
      chunks: how many times ``schedule_steps`` there may be, which is the room of the schedule in HBM.
    """
    return Settings(
        block=configs.BlockSizes(
            bq_sz=config.bq_sz,
            bq_c_sz=config.bq_c_sz,
            bkv_sz=config.bkv_sz,
            batch_size=config.batch_size,
            n_buffer=config.n_buffer,
        ),
        model=configs.ModelConfigs(
            num_q_heads=num_q_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            mask_value=float(jnp.finfo(jnp.float32).min),
            sm_scale=scale,
            soft_cap=soft_cap,
            sliding_window=window,
        ),
        serve=configs.ServingConfigs(
            num_seqs=batch,
            page_size=page_size,
            total_q_tokens=tokens,
            num_page_indices=batch * width,
            dtype_q=jnp.dtype(q_dtype),
            dtype_kv=jnp.dtype(kv_dtype),
            dtype_out=jnp.dtype(jnp.float32),
            return_lse=True,
            skip_kv_update=True,
            max_schedule_size_multiplier=chunks,
        ),
        # All sequences are of the last kind, so that the table may have them in any order.
        mode=configs.RpaCase.MIXED,
        vmem_limit_bytes=0 if config.vmem_limit_kib is None else 1024 * config.vmem_limit_kib,
        steps=config.schedule_steps,
        accumulates=config.fuse_accum,
    )
