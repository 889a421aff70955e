"""Problems and devices that the kernel does not support, and blocks that do not fit."""

from typing import Any

from attn_tune.kernels.lang.pallas_tpu.cache_limits import refuses_problem, refuses_tables
from attn_tune.kernels.lang.pallas_tpu.memory import LANES, SUBLANES, limit_reason
from attn_tune.kernels.lang.pallas_tpu.ragged.blocks import vmem_bytes
from attn_tune.kernels.lang.pallas_tpu.ragged.config import Config
from attn_tune.kernels.lang.pallas_tpu.scalars import table_bytes
from attn_tune.ops.fields.cache_walk import key_heads
from attn_tune.schema.device import Device

DECIDES_NO_CODE = "what is refused; a row holds its config"


def unsupported(problem: Any, direction: str, device: Device) -> str | None:
    """The reason that the kernel cannot do the problem on this device at all, or None."""
    p = problem
    if reason := refuses_problem(p, device, layout="interleaved", whose="JAX's ragged paged attention"):
        return reason
    if p.head_dim != LANES:
        return f"it reads keys in rows of {LANES} lanes, not of h={p.head_dim}"
    if p.kv_scale in ("head", "token"):
        return f"it has one scale of all keys and one of all values, not one of each {p.kv_scale}"
    if (heads := key_heads(p)) is None:
        return f"it cannot tile {2 * p.num_kv_heads} heads of keys and values of {p.cache_dtype}"
    some = heads * p.group_size
    if some % SUBLANES and some != p.num_q_heads:
        return f"it takes {some} of {p.num_q_heads} query heads at a time, and Mosaic {SUBLANES} at a time, or all"
    return refuses_tables(device, tables(p.batch, p.input_width))


def infeasible(problem: Any, device: Device, config: Config, tokens: int) -> str | None:
    """The reason that a config cannot run, or None.

    Args:
      tokens: the queries of all sequences.
    """
    p = problem
    if config.num_kv_pages_per_block > p.input_width:
        return f"num_kv_pages_per_block={config.num_kv_pages_per_block} is above the {p.input_width} of a sequence"
    if config.num_queries_per_block > (most := most_queries(tokens)):
        return f"num_queries_per_block={config.num_queries_per_block} is above {most}, for {tokens} queries"
    return limit_reason(device, vmem_bytes(p, config), config.vmem_limit_kib)


def most_queries(tokens: int) -> int:
    """The least power of two that holds all queries, at least eight."""
    return max(8, 1 << (tokens - 1).bit_length())


def tables(batch: int, width: int) -> dict[str, int]:
    """Bytes of scalar memory for a page table of so many rows and columns."""
    return {"page table": table_bytes(batch, width, 4), "lengths": 8 * (batch + 1)}
