"""The walks of TPU kernels over a cache in pages (``Op.walk``): blocks of pages of each sequence, as long as it is.

Both kernels of JAX's Pallas library copy pages themselves, a block ahead. One takes a key head and a sequence at a
time; the other a block of queries, in which several sequences may be, and some heads or all. Knobs say which one it is.
Lengths are those of the problem's workload. A block is copied whole, also where the sequence ends within it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attn_tune.ops.cost_walk import CostWalk, Walk

_BITS = {"float32": 32, "bfloat16": 16, "float16": 16, "float8_e4m3fn": 8, "int8": 8}
_SUBLANES = 8
_PAGED, _RAGGED, _QUERIES = "pages_per_compute_block", "num_kv_pages_per_block", "num_queries_per_block"


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


def _fills(heads: int, packing: int) -> bool:
    words, rest = divmod(heads, packing)
    return rest == 0 and (words in (1, 2, 4) or words % _SUBLANES == 0)
