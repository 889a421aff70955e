"""The public ``cascade_attention``: attention over prefixes that sequences share, and over what follows them.

It is a composition, not an op: the keys of a prefix are read once for all sequences that share it, those of each
sequence once for itself, and the parts are merged by their lse. Each of these calls is looked up as what it is.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn_tune.api.serving.cache_attention import check_query_dtype
from attn_tune.api.serving.merge_attention import merge_attention
from attn_tune.api.serving.paged_decode import paged_decode
from attn_tune.api.serving.ragged_paged import ragged_paged
from attn_tune.ops.fields.arguments import check_array, check_not_empty, checked_flag
from attn_tune.ops.fields.cache import sizes_of
from attn_tune.ops.fields.cache_arguments import (
    check_caches,
    check_count,
    check_ends,
    check_heads,
    check_integers,
    count_sequences,
    first_ends,
)
from attn_tune.ops.fields.integers import positive_integer
from attn_tune.ops.merge_attention.problem import MOST_PARTS
from attn_tune.schema.errors import UnsupportedError, UsageError

# Of groups whose sizes only the device knows: rows of a key head that one walk of the prefix serves. More rows read it
# less often and leave more of them unused; up to about so many a GPU reads keys no faster than it multiplies them.
_ROWS = 128
_OPS = ("paged_decode", "ragged_paged", "merge_attention")

type Part = tuple[Array, Array]
# An attention of queries over tokens of the cache, as a function of lengths and page table.
type Attend = Callable[..., Part]


class SharedPrefix(NamedTuple):
    """One level of prefixes: ``G`` groups of consecutive sequences, each with tokens that all its sequences share.

    Attributes:
      page_table: int32 ``[G, pages of a prefix]``: the pages of each group's prefix in order, in the cache that holds
        all other tokens too. Entries behind a prefix may be anything.
      kv_lens: int32 ``[G]``: tokens of each prefix. One of 0 is none: its sequences have no prefix on this level.
      cu_seqs: int32 ``[G + 1]``: 0, then the end of each group as a number of sequences; it never falls. Sequences from
        the last end on have no prefix. None: groups of equal size, one prefix for all sequences where ``G`` is 1.
    """

    page_table: Int[Array, "G pages"]
    kv_lens: Int[Array, " G"]
    cu_seqs: Int[Array, " ends"] | None = None


def cascade_attention(
    query: Float[Array, "..."],
    k_pages: Array,
    v_pages: Array | None,
    kv_lens: Int[Array, " B"],
    page_table: Int[Array, "B pages"],
    prefixes: SharedPrefix | Sequence[SharedPrefix],
    *,
    cu_q_lens: Int[Array, " ends"] | None = None,
    num_seqs: int | Int[Array, ""] | None = None,
    layout: str = "nhd",
    sliding_window: int | None = None,
    softmax_scale: float | None = None,
    logits_soft_cap: float | None = None,
    softmax_aux: Float[Array, "..."] | None = None,
    k_scale: Float[Array, "..."] | float | None = None,
    v_scale: Float[Array, "..."] | float | None = None,
    max_kv_len: int | None = None,
    max_prefix_len: int | None = None,
    workload: str = "eq",
    return_lse: bool = False,
    platform: str | Mapping[str, str | None] | None = None,
) -> Any:
    """Attention of new tokens over prefixes that sequences share, and over each sequence's own tokens behind them.

    The keys of a prefix are read once for its group, not once for each sequence; of a decoding call with ``cu_seqs``
    once for every 128 queries of a key head. Results are those of ``paged_decode`` or ``ragged_paged`` over prefix and
    own tokens in a row, but for roundings: each part is rounded to the queries' dtype before the parts are merged. New
    tokens are among the own ones, so that every query sees all of its prefixes.
    All lengths and groups are arrays that only the device needs to know. There is no derivative.

    It calls ``paged_decode`` (queries of a group are query heads of one sequence, packed into tiles), or with
    ``cu_q_lens`` ``ragged_paged`` with ``causal=False``, then the same op over the own tokens, and ``merge_attention``.

    Args:
      query: ``[B, N, H]``, one new token of each sequence, or ``[B, T, N, H]``, one to eight; with ``cu_q_lens``
        ``[tokens, N, H]``, those of one sequence after the other.
      k_pages: keys in pages, by ``layout``, as in ``paged_decode``: of prefixes and own tokens.
      v_pages: values, likewise; None for ``interleaved``.
      kv_lens: int32 own tokens of each sequence in the cache, new ones included and its prefixes not. Fewer than new
        tokens are outside of the contract: a sequence of 0 attends to its prefixes alone. Only ``num_seqs`` makes the
        outputs of idle slots zero.
      page_table: int32 ``[B, pages of a sequence]`` of own tokens; the first page holds those right behind the prefix.
      prefixes: a ``SharedPrefix``, or several levels of them: a sequence sees its prefix of each level (a system
        prompt, then the examples of a task).
      cu_q_lens: int32 ``[B + 1]`` where sequences have different numbers of new tokens, as in ``ragged_paged``.
      num_seqs: sequences from this one on are empty, and nothing of theirs counts.
      sliding_window: refused unless None: of a prefix each query would see another part.
      softmax_scale: default ``1/sqrt(H)``.
      logits_soft_cap: logits become ``cap * tanh(logits / cap)``.
      softmax_aux: attention sinks, as in ``flash_attention``; they count once.
      k_scale: float32 factors of codes, as in ``paged_decode``.
      v_scale: the same of the values.
      max_kv_len: the most own tokens to expect, which chooses the config; more are right too.
      max_prefix_len: the longest prefix to expect of any level, likewise. Default: what a row of its table holds.
      workload: the profile of own lengths to expect, as in ``paged_decode`` or ``ragged_paged``.
      return_lse: return ``(out, lse)``.
      platform: the kernels to use: one name or backend for all ops that it calls, or a mapping from their names.

    Returns:
      ``out``, like ``query`` with values' width. With ``return_lse`` also the natural logarithm of the softmax's
      denominator, float32 with the axes of ``out`` but the last, sinks included; where nothing is seen theirs alone, or
      minus infinity.

    Raises:
      UsageError: an argument is malformed; the message names it.
      UnsupportedError: there is a window; or no kernel can do this here, or not the requested one.
    """
    if sliding_window is not None:
        raise UnsupportedError(
            f"sliding_window={sliding_window}: of a shared prefix each query would see another part; call paged_decode "
            "or ragged_paged over page tables that hold prefix and own pages in a row"
        )
    return_lse = checked_flag("return_lse", return_lse)
    q, batch = _checked_query(query, kv_lens, cu_q_lens)
    if page_table is None:
        raise UsageError("page_table is missing: prefixes are shared by their pages")
    if max_prefix_len is not None:
        max_prefix_len = positive_integer("max_prefix_len", max_prefix_len)
    k, v = check_caches(k_pages, v_pages, layout, dtype=q.dtype, whose="the query", sequences=None)
    check_heads(q, k, layout)
    levels = _checked_levels(prefixes, batch)
    common: dict[str, Any] = {
        "layout": layout,
        "softmax_scale": softmax_scale,
        "logits_soft_cap": logits_soft_cap,
        "k_scale": k_scale,
        "v_scale": v_scale,
        "return_lse": True,
    }
    of_prefix: dict[str, Any] = common | {"max_kv_len": max_prefix_len}
    of_own: dict[str, Any] = common | {"max_kv_len": max_kv_len, "num_seqs": num_seqs}
    of_own |= {"workload": workload, "softmax_aux": softmax_aux}
    if cu_q_lens is None:
        decode = functools.partial(paged_decode, platform=_platform(platform, "paged_decode"))
        own = decode(q, k, v, kv_lens, page_table, **of_own)
        kv_heads = sizes_of(layout, k.shape)["head"]

        def attend(q: Array, kv_lens: Array, page_table: Array) -> Part:
            return decode(q, k, v, kv_lens, page_table, **of_prefix)

        parts = [_decoded(attend, q, level, kv_heads, num_seqs) for level in levels]
    else:
        ragged = functools.partial(ragged_paged, platform=_platform(platform, "ragged_paged"))
        own = ragged(q, k, v, kv_lens, cu_q_lens, page_table, **of_own)
        tokens = (q.shape[0], "queries")
        ends = first_ends(num_seqs, check_ends("cu_q_lens", cu_q_lens, (batch + 1,), most=tokens, num_seqs=num_seqs))
        parts = []
        for level in levels:
            group_ends = ends[_group_ends(level, batch)]
            parts.append(ragged(q, k, v, level.kv_lens, group_ends, level.page_table, causal=False, **of_prefix))
    out, lse = _merged([*parts, own], _platform(platform, "merge_attention"))
    if cu_q_lens is None and jnp.ndim(query) == 3:
        out, lse = out[:, 0], lse[:, 0]
    return (out, lse) if return_lse else out


def _checked_query(query: Any, kv_lens: Any, cu_q_lens: Any) -> tuple[Array, int]:
    """Queries ``[B, T, N, H]``, or of a ragged call ``[tokens, N, H]``, and the number of sequences."""
    q, batch = check_not_empty("query", check_array("query", query)), count_sequences(kv_lens)
    if cu_q_lens is not None:
        if q.ndim != 3:
            raise UsageError(f"query must be [tokens, N, H] with cu_q_lens, got shape {q.shape}")
    elif q.ndim not in (3, 4):
        raise UsageError(f"query must be [B, N, H] or [B, T, N, H], got shape {q.shape}")
    elif q.shape[0] != batch:
        raise UsageError(f"query has a batch of {q.shape[0]} and kv_lens one of {batch}")
    check_query_dtype(q)
    return q if cu_q_lens is not None or q.ndim == 4 else q[:, None], batch


def _checked_levels(prefixes: Any, batch: int) -> list[SharedPrefix]:
    """The levels, their arrays checked."""
    levels = [prefixes] if isinstance(prefixes, SharedPrefix) else prefixes
    if isinstance(levels, list | tuple) and not levels:
        raise UsageError("prefixes is empty: give a SharedPrefix, or call paged_decode or ragged_paged without any")
    if not isinstance(levels, list | tuple) or not all(isinstance(x, SharedPrefix) for x in levels):
        raise UsageError(f"prefixes must be a SharedPrefix, or a list of them, got {type(prefixes).__name__}")
    found = []
    for i, level in enumerate(levels):
        name = f"prefixes[{i}]"
        shape = check_array(f"{name}.kv_lens", level.kv_lens).shape
        if len(shape) != 1 or not shape[0]:
            raise UsageError(f"{name}.kv_lens must be integers [G], got shape {shape}")
        (groups,) = shape
        if level.cu_seqs is None and batch % groups:
            raise UsageError(
                f"{name} has {groups} prefixes for {batch} sequences; unequal groups need cu_seqs [{groups + 1}]"
            )
        found.append(
            SharedPrefix(
                page_table=check_integers(f"{name}.page_table", level.page_table, (groups, None), f"{name}.kv_lens"),
                kv_lens=check_integers(f"{name}.kv_lens", level.kv_lens, (groups,), f"{name}.kv_lens"),
                cu_seqs=None
                if level.cu_seqs is None
                else check_ends(
                    f"{name}.cu_seqs", level.cu_seqs, (groups + 1,), f"{name}.kv_lens", most=(batch, "sequences")
                ),
            )
        )
    return found


def _platform(platform: Any, op: str) -> Any:
    """The kernel that the caller wants of an op."""
    if not isinstance(platform, Mapping):
        return platform
    if unknown := [key for key in platform if key not in _OPS]:
        raise UsageError(f"platform has the key {unknown[0]!r}; its keys are {', '.join(_OPS)}")
    return platform.get(op)


def _group_ends(level: SharedPrefix, batch: int) -> Int[Array, " ends"]:
    groups = level.kv_lens.shape[0]
    if level.cu_seqs is None:
        return jnp.arange(groups + 1, dtype=jnp.int32) * (batch // groups)
    return jnp.clip(level.cu_seqs, 0, batch)


def _decoded(attend: Attend, q: Float[Array, "B T N H"], level: SharedPrefix, kv_heads: int, num_seqs: Any) -> Part:
    """The part of a level: the output ``[B, T, N, V]`` and the lse ``[B, T, N]`` of every query over its prefix."""
    batch, q_len, num_q_heads, _ = q.shape
    groups = level.kv_lens.shape[0]
    sequence = jnp.arange(batch)
    count = batch if num_seqs is None else check_count("num_seqs", num_seqs)
    if level.cu_seqs is None:
        tiles = q.reshape(groups, batch // groups, *q.shape[1:])
        out, lse = _over_tiles(attend, tiles, level.kv_lens, level.page_table, kv_heads)
        out, lse = out.reshape(batch, *out.shape[2:]), lse.reshape(batch, *lse.shape[2:])
        has_prefix = sequence < count
    else:
        size = max(1, min(batch, _ROWS * kv_heads // (q_len * num_q_heads)))
        # The most tiles that groups can have: one more than they fill, and none without a sequence.
        tile = jnp.arange(min(batch, (batch + groups * (size - 1)) // size))
        ends = jnp.minimum(_group_ends(level, batch), count)
        last_tiles = jnp.cumsum(-(-jnp.diff(ends) // size))
        first_tiles = jnp.concatenate([jnp.zeros(1, last_tiles.dtype), last_tiles])
        group = jnp.minimum(jnp.searchsorted(last_tiles, tile, side="right", method="scan_unrolled"), groups - 1)
        first = ends[group] + (tile - first_tiles[group]) * size
        members = jnp.clip(first[:, None] + jnp.arange(size)[None], 0, batch - 1)
        lengths = jnp.where(tile < last_tiles[-1], level.kv_lens[group], 0)
        out, lse = _over_tiles(attend, q[members], lengths, level.page_table[group], kv_heads)
        own = jnp.minimum(jnp.searchsorted(ends[1:], sequence, side="right", method="scan_unrolled"), groups - 1)
        place = sequence - ends[own]
        at = (jnp.minimum(first_tiles[own] + place // size, tile.size - 1), place % size)
        out, lse = out[at], lse[at]
        has_prefix = sequence < ends[-1]
    return out, jnp.where(has_prefix[:, None, None], lse, -jnp.inf)


def _over_tiles(
    attend: Attend, tiles: Float[Array, "G S T N H"], lengths: Array, page_table: Array, kv_heads: int
) -> tuple[Float[Array, "G S T N V"], Float[Array, "G S T N"]]:
    """The output and the lse of tiles of queries, each over tokens of its own.

    All queries of a tile are query heads of one new token, which stands behind the last key: it sees all of them.
    """
    groups, sequences, q_len, num_q_heads, head_dim = tiles.shape
    split = (groups, sequences, q_len, kv_heads, num_q_heads // kv_heads)
    # Query heads of a key head lie side by side.
    packed = tiles.reshape(*split, head_dim).transpose(0, 3, 1, 2, 4, 5).reshape(groups, -1, head_dim)
    out, lse = attend(packed, lengths, page_table)
    moved = (groups, kv_heads, sequences, q_len, split[-1])
    out = out.reshape(*moved, -1).transpose(0, 2, 3, 1, 4, 5).reshape(*tiles.shape[:-1], -1)
    return out, lse.reshape(moved).transpose(0, 2, 3, 1, 4).reshape(tiles.shape[:-1])


def _merged(parts: list[Part], platform: Any) -> Part:
    while len(parts) > 1:
        some, others = parts[:MOST_PARTS], parts[MOST_PARTS:]
        merged = merge_attention([out for out, _ in some], [lse for _, lse in some], platform=platform)
        parts = [merged, *others]
    return parts[0]
