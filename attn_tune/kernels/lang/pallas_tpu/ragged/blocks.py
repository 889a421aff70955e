"""The heads that one step of the kernel takes, and what its blocks need of VMEM."""

from typing import Any

from attn_tune.kernels.lang.pallas_tpu.memory import LANES, SUBLANES, round_up, tiled_bytes
from attn_tune.kernels.lang.pallas_tpu.ragged.config import Config

DECIDES_NO_CODE = "estimates of memory; the library chooses the heads by itself"

_BITS = {"float32": 32, "bfloat16": 16, "float8_e4m3fn": 8, "int8": 8}
_FLOAT32 = 4


def key_heads(problem: Any) -> int | None:
    """Key heads of one step; None where the library can tile neither some heads nor all.

    Heads of keys and values together must fill sublanes, 8 of them or a power of two below, with codes of one word
    side by side; so must those of queries.
    """
    p = problem
    both, packing = 2 * p.num_kv_heads, 32 // _BITS[p.cache_dtype]
    if not _fills(both, packing):
        return None
    most = SUBLANES * packing
    some = most if both % most == 0 else both
    fits = _fills(some // 2 * p.group_size, 32 // _BITS[p.dtype])
    return (some if fits else both) // 2


def _fills(heads: int, packing: int) -> bool:
    words, rest = divmod(heads, packing)
    return rest == 0 and (words in (1, 2, 4) or words % SUBLANES == 0)


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
