"""The VMEM that blocks of the kernel need."""

from typing import Any

from attn_tune.kernels.lang.pallas_tpu.memory import LANES, round_up, tiled_bytes
from attn_tune.kernels.lang.pallas_tpu.ragged.config import Config
from attn_tune.ops.fields.cache_walk import key_heads

_BITS = {"float32": 32, "bfloat16": 16, "float8_e4m3fn": 8, "int8": 8}
_FLOAT32 = 4
# Copies of one key head's logits that a step spills: read on v6e of caches in 16 bits, and on v5e and v5p of codes, of
# which two heads are in a word.
_LOGITS, _LOGITS_OF_CODES = 10, 18
# Copies of a block of float32 queries that it spills too, of a cache of codes: up to 2.5, read on 7x.
_WIDE_QUERIES = 3


def expected_bytes(problem: Any, config: Config) -> int:
    """A high estimate of the VMEM, which untuned blocks and limits are chosen by: they are not compiled first."""
    p, least = problem, vmem_bytes(problem, config)
    if _BITS[p.cache_dtype] > 8:
        return least
    queries = _WIDE_QUERIES * _query_bytes(p, config) if p.dtype == "float32" else 0
    return least + (_LOGITS_OF_CODES - _LOGITS) * _logits_bytes(p, config) + queries


def vmem_bytes(problem: Any, config: Config) -> int:
    """An estimate of the VMEM: two copies of what passes, the sums of all rows, and registers that one step spills.

    The last was read from what libtpu 0.0.52 reports on v6e, of blocks with 32 to 512 rows and 256 to 1024 keys.
    """
    p = problem
    heads = key_heads(p) or p.num_kv_heads
    code = _BITS[p.cache_dtype] // 8
    keys = config.num_kv_pages_per_block * p.page_size
    queries = config.num_queries_per_block
    rows = queries * p.group_size
    # Keys and values of a token are rows of one tile; queries of a token too.
    pages = 2 * keys * tiled_bytes(2 * heads, p.head_dim, code)
    accumulator = queries * tiled_bytes(heads * p.group_size, p.head_dim, _FLOAT32)
    sums = 2 * heads * tiled_bytes(rows, LANES, _FLOAT32)
    spilled = 4 * tiled_bytes(keys, p.head_dim, _FLOAT32) + 8 * tiled_bytes(rows, p.head_dim, _FLOAT32)
    spilled += _LOGITS * _logits_bytes(p, config)
    return pages + 4 * _query_bytes(p, config) + accumulator + sums + spilled


def _logits_bytes(p: Any, config: Config) -> int:
    keys = round_up(config.num_kv_pages_per_block * p.page_size, LANES)
    return tiled_bytes(config.num_queries_per_block * p.group_size, keys, _FLOAT32)


def _query_bytes(p: Any, config: Config) -> int:
    heads = key_heads(p) or p.num_kv_heads
    return config.num_queries_per_block * tiled_bytes(heads * p.group_size, p.head_dim, _BITS[p.dtype] // 8)
