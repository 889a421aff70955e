"""The VMEM that blocks of the kernel need."""

from typing import Any, NamedTuple

from attn_tune.kernels.lang.pallas_tpu.batched.config import Config
from attn_tune.kernels.lang.pallas_tpu.memory import LANES, SUBLANES, round_up

_BITS = {"float32": 32, "bfloat16": 16, "float8_e4m3fn": 8, "int8": 8}
_FLOAT32, _WORD = 4, 32
# Outputs always have two buffers.
_DOUBLE = 2
# Rows of one key head from which on keys and values no longer stay in registers, and the share that leaves them before.
_MANY, _SHARE = 64, 4
# Values in float32 that a step keeps of each row: the sums before and behind it, and the factors between them.
_SUMS = 6


class Vmem(NamedTuple):
    """Bytes of VMEM.

    Attributes:
      buffers: what the launch allocates.
      expected: with what libtpu 0.0.52 spills on v6e, of blocks with 1 to 64 queries and 512 to 1024 keys: it spills
        less than this.
    """

    buffers: int
    expected: int


def vmem(problem: Any, config: Config) -> Vmem:
    """The bytes that one launch needs."""
    p, c = problem, config
    heads, width = p.num_kv_heads, p.head_dim
    code, size = _BITS[p.cache_dtype] // 8, _BITS[p.dtype] // 8
    # Rows are whole words.
    group = round_up(p.group_size, _WORD // _BITS[p.dtype])
    rows = heads * c.bq_sz * group
    # An even number of words from a token to the next would meet the same banks of memory.
    words = 2 * heads * _BITS[p.cache_dtype] // _WORD | 1
    keys = c.n_buffer * c.batch_size * c.bkv_sz * words * width * 4
    queries = c.n_buffer * c.batch_size * rows * width * size
    outputs = _DOUBLE * c.batch_size * rows * (width + LANES) * _FLOAT32
    tiled = heads * round_up(c.bq_sz * group, SUBLANES)
    sums = tiled * (2 * LANES + width) * _FLOAT32
    buffers = keys + queries + outputs + sums

    loaded = 2 * c.batch_size * heads * c.bkv_sz * width * max(2, code)
    is_kept = code >= 2 and c.bq_sz * group < _MANY
    of_rows = _SUMS * c.batch_size * tiled * width * _FLOAT32
    logits = c.batch_size * heads * round_up(c.bq_c_sz * group, SUBLANES) * c.bkv_sz * _FLOAT32
    return Vmem(buffers, buffers + (loaded // _SHARE if is_kept else loaded) + of_rows + logits)
