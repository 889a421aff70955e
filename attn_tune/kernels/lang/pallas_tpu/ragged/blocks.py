"""The VMEM that blocks of the kernel need."""

from typing import Any

from attn_tune.kernels.lang.pallas_tpu.memory import LANES, round_up, tiled_bytes
from attn_tune.kernels.lang.pallas_tpu.ragged.config import Config
from attn_tune.ops.fields.cache_walk import key_heads

_BITS = {"float32": 32, "bfloat16": 16, "float8_e4m3fn": 8, "int8": 8}
_FLOAT32 = 4


def vmem_bytes(problem: Any, config: Config) -> int:
    """An estimate of the VMEM: two copies of what passes, the sums of all rows, and registers that one step spills.

    The last was read from what libtpu 0.0.52 reports on v6e, of blocks with 32 to 512 rows and 256 to 1024 keys.
    """
    p = problem
    heads = key_heads(p) or p.num_kv_heads
    code, size = _BITS[p.cache_dtype] // 8, _BITS[p.dtype] // 8
    keys = config.num_kv_pages_per_block * p.page_size
    queries = config.num_queries_per_block
    rows = queries * p.group_size
    # Keys and values of a token are rows of one tile; queries of a token too.
    pages = 2 * keys * tiled_bytes(2 * heads, p.head_dim, code)
    block = queries * tiled_bytes(heads * p.group_size, p.head_dim, size)
    accumulator = queries * tiled_bytes(heads * p.group_size, p.head_dim, _FLOAT32)
    sums = 2 * heads * tiled_bytes(rows, LANES, _FLOAT32)
    logits = tiled_bytes(rows, round_up(keys, LANES), _FLOAT32)
    spilled = 4 * tiled_bytes(keys, p.head_dim, _FLOAT32) + 10 * logits + 8 * tiled_bytes(rows, p.head_dim, _FLOAT32)
    return pages + 4 * block + accumulator + sums + spilled
