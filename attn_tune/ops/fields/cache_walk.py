"""The walks of TPU kernels over a cache in pages (``Op.walk``): blocks of pages of each sequence, as long as it is.

The kernels copy pages themselves, a block ahead. Of JAX's Pallas library one takes a key head and a sequence at a time;
the other a block of queries, in which several sequences may be, and some heads or all. Both copy a block whole, also
where the sequence ends within it. That of tokamax takes all heads of some blocks, each of one sequence, and copies no
more than its tokens. Knobs say which one it is. Lengths are those of the problem's workload.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attn_tune.ops.cost_walk import CostWalk, Walk

_BITS = {"float32": 32, "bfloat16": 16, "float16": 16, "float8_e4m3fn": 8, "int8": 8}
_SUBLANES = 8
_PAGED, _RAGGED, _QUERIES = "pages_per_compute_block", "num_kv_pages_per_block", "num_queries_per_block"
_BATCHED_KEYS, _BATCHED_QUERIES, _TOGETHER = "bkv_sz", "bq_sz", "batch_size"
# Of its outputs and their logsumexp, which fills a row of lanes.
_FLOAT32, _LANES = 4, 128


def key_heads(problem: Any) -> int | None:
    """Key heads of one step of the ragged kernel; None where it can tile neither some heads nor all.

    Heads of keys and values together must fill sublanes, 8 of them or a power of two below, with codes of one word
    side by side; so must those of queries.
    """
    p = problem
    both, packing = 2 * p.num_kv_heads, 32 // _BITS[p.cache_dtype]
    if not _fills(both, packing):
        return None
    most = _SUBLANES * packing
    some = most if both % most == 0 else both
    fits = _fills(some // 2 * p.group_size, 32 // _BITS[p.dtype])
    return (some if fits else both) // 2


def walk_of(problem: Any, config: Mapping[str, Any], sequences: Iterable[tuple[int, int]]) -> Walk | None:
    """Counts the blocks of a launch; None when the config has none.

    Args:
      sequences: the queries and the length of each, in order.
    """
    token = (problem.head_dim + problem.v_head_dim) * _BITS[problem.cache_dtype] // 8
    if _PAGED in config:
        return _paged(problem, config[_PAGED], token, sequences)
    if _RAGGED in config:
        return _ragged(problem, config[_RAGGED], config[_QUERIES], token, sequences)
    if _BATCHED_KEYS in config:
        sizes = config[_BATCHED_KEYS], config[_BATCHED_QUERIES], config[_TOGETHER]
        return _batched(problem, *sizes, token, sequences)
    return None


def make_walk(sequences_of: Callable[[Any], Iterable[tuple[int, int]]]) -> CostWalk:
    """The walk of an op.

    Args:
      sequences_of: ``(problem) -> pairs``: the queries and the length of each sequence, in order.
    """
    return CostWalk(
        of_launch=lambda launch, problem, config: walk_of(problem, config, sequences_of(problem)),
        # A body has loops whose trips lengths decide: a longer problem has another one.
        longer=lambda problem: (),
        is_default=lambda config: False,
        has_single_block=lambda config, problem: False,
    )


def _paged(p: Any, block: int, token: int, sequences: Iterable[tuple[int, int]]) -> Walk:
    blocks = 0
    for queries, length in sequences:
        low = 0 if p.window is None else max(0, length - 1 - p.window)
        whole = max(0, length - queries + 1) // p.page_size - -(-low // p.page_size)
        blocks += -(-max(0, whole) // block)
    visits = p.num_kv_heads * blocks
    return Walk(
        steps=visits,
        visits=visits,
        cut=0,
        rests=0,
        visit_bytes=block * p.page_size * token,
        rest_bytes=0,
        copies_itself=True,
    )


def _ragged(p: Any, block: int, queries: int, token: int, sequences: Iterable[tuple[int, int]]) -> Walk:
    heads = key_heads(p) or p.num_kv_heads
    visits = pairs = begin = 0
    for new, length in sequences:
        low = 0 if p.window is None else max(0, length - new - p.window)
        left = length - -(-low // p.page_size) * p.page_size
        # One without queries is a block of its own, of which nothing is used.
        touched = max(1, -(-(begin + new) // queries) - begin // queries)
        pairs += touched
        visits += touched * max(1, -(-left // (block * p.page_size))) if new else 1
        begin += new
    parts = p.num_kv_heads // heads
    row = p.num_q_heads // parts * (p.head_dim + p.v_head_dim) * _BITS[p.dtype] // 8
    return Walk(
        steps=parts * pairs,
        visits=parts * visits,
        cut=0,
        rests=parts * pairs,
        visit_bytes=block * p.page_size * heads * token,
        # Queries pass and outputs leave once, however many sequences share a block of them.
        rest_bytes=begin * row // pairs,
        copies_itself=True,
    )


def _batched(
    p: Any, keys: int, queries: int, together: int, token: int, sequences: Iterable[tuple[int, int]]
) -> Walk | None:
    blocks = rests = copied = rows = 0
    for new, length in sequences:
        low = 0 if p.window is None else max(0, length - new - p.window)
        # Pages before the window are left out, with what of them is in it.
        left = max(0, length - -(-low // p.page_size) * p.page_size)
        for begin in range(0, new, queries):
            end = min(begin + queries, new)
            most = min(left, max(0, left - new + end))
            first = 0 if p.window is None else max(0, left - new + begin - p.window) // keys
            count = -(-most // keys) - first
            if count > 0:
                blocks += count
                rests += 1
                copied += min(left, -(-most // keys) * keys) - first * keys
                rows += end - begin
    visits = -(-blocks // together)
    if not visits:
        return None
    row = p.num_q_heads * (p.head_dim * _BITS[p.dtype] // 8 + (p.v_head_dim + _LANES) * _FLOAT32)
    return Walk(
        steps=visits,
        visits=visits,
        cut=0,
        rests=rests,
        visit_bytes=copied * p.num_kv_heads * token // visits,
        rest_bytes=rows * row // rests,
        copies_itself=True,
    )


def _fills(heads: int, packing: int) -> bool:
    words, rest = divmod(heads, packing)
    return rest == 0 and (words in (1, 2, 4) or words % _SUBLANES == 0)
