"""Problems and devices that the kernel does not support, and blocks that do not fit."""

from typing import Any

from attn_tune.kernels.lang.libraries.tokamax import wrong_version
from attn_tune.kernels.lang.pallas_tpu.batched import scalars
from attn_tune.kernels.lang.pallas_tpu.batched.blocks import vmem
from attn_tune.kernels.lang.pallas_tpu.batched.config import MOST_KEYS, Config
from attn_tune.kernels.lang.pallas_tpu.cache_limits import refuses_problem, refuses_tables
from attn_tune.kernels.lang.pallas_tpu.memory import limit_reason
from attn_tune.ops.fields.cache import SAME
from attn_tune.schema.device import Device

_WORD = {"float32": 1, "bfloat16": 2, "float8_e4m3fn": 4, "int8": 4}
# Keys of the smallest block.
LEAST_KEYS = 8


def unsupported(problem: Any, direction: str, device: Device) -> str | None:
    """The reason that the kernel cannot do the problem on this device at all, or None."""
    p = problem
    if reason := refuses_problem(p, device, layout="interleaved", whose="tokamax's batched ragged paged attention"):
        return reason
    if device.family == "v4":
        return "tokamax's batched ragged paged attention is for TPU v5 and later, not v4; use pallas_tpu_ragged"
    if p.page_size & (p.page_size - 1) or p.page_size > MOST_KEYS:
        return (
            f"page={p.page_size} is no power of two up to {MOST_KEYS}, which it counts in bits; use pallas_tpu_ragged"
        )
    if p.dtype == "float32" and p.kv_dtype != SAME:
        return f"it cannot multiply float32 queries by codes; kv={p.kv_dtype} needs dtype=bfloat16, or platform='xla'"
    if p.kv_scale not in ("none", "tensor"):
        return f"it has one scale of all keys and one of all values, not one of each {p.kv_scale}; use platform='xla'"
    if 2 * p.num_kv_heads % _WORD[p.cache_dtype]:
        return (
            f"{2 * p.num_kv_heads} heads of keys and values of {p.cache_dtype} fill no whole words; use platform='xla'"
        )
    least = Config(bq_sz=1, bq_c_sz=1, bkv_sz=max(LEAST_KEYS, p.page_size), batch_size=1, n_buffer=2)
    tables = scalars.tables(p.batch, p.input_width) | scalars.schedule(least, p.page_size)
    return refuses_tables(device, tables) or wrong_version()


def infeasible(problem: Any, device: Device, config: Config, queries: int) -> str | None:
    """The reason that a config cannot run, or None.

    Args:
      queries: the most that a sequence may have.
    """
    p, c = problem, config
    if c.bkv_sz % p.page_size:
        return f"bkv_sz={c.bkv_sz} must be a multiple of page={p.page_size}"
    if c.bkv_sz > (most := most_keys(p)):
        return f"bkv_sz={c.bkv_sz} is above {most}, for the {p.input_width * p.page_size} tokens of a sequence's pages"
    if c.bq_sz > (most := most_queries(queries)):
        return f"bq_sz={c.bq_sz} is above {most}, for {queries} queries"
    tables = scalars.tables(p.batch, p.input_width) | scalars.schedule(c, p.page_size)
    if reason := refuses_tables(device, tables):
        return reason
    return limit_reason(device, vmem(p, c).buffers, c.vmem_limit_kib)


def most_keys(problem: Any) -> int:
    """The least power of two that holds all tokens of a sequence's pages, at least a whole block's."""
    return max(LEAST_KEYS, 1 << (problem.input_width * problem.page_size - 1).bit_length())


def most_queries(queries: int) -> int:
    """The least power of two that holds so many queries."""
    return 1 << (queries - 1).bit_length()
