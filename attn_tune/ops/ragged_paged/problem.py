"""The static half of one call over sequences with different numbers of new tokens."""

import itertools
from dataclasses import dataclass
from typing import ClassVar

from attn_tune.ops.contract import Workload, workload_field
from attn_tune.ops.fields.attention import check_choice
from attn_tune.ops.fields.cache import BLOCK, LATENT, LAYOUTS, SAME, SCALES
from attn_tune.ops.fields.cache_problem import HEAD_FIELDS, CacheAttention, least_bytes
from attn_tune.ops.workloads import LENGTHS, profile_lengths
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Field, FieldKind

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"

NAME = "ragged_paged"
VERSION = 1
# Queries at the edges that belong to no sequence, and of the sequences there queries and given lengths; None is all
# there are, and two lengths count as all that the cache holds and as nothing.
PADDING = 3
_EDGES = ((1, None), (1, 1), (0, 5), (3, 3), (4, 2), (None, None), (0, 0), (1, 9), (5, 21), (1, 2**31 - 1), (2, -3))
# What has a scale of its own in queries that are codes; ``none``: they are no codes.
Q_SCALES = ("none", "tensor", "token")
# Of ``mix``, one sequence in so many has all the queries that are left when the others have one each.
_CHUNKS_EVERY = 8
WORKLOADS = (
    *LENGTHS,
    Workload(name="mix", summary="seven of eight sequences decode one token, lengths as of uni; the rest are chunks"),
)

FIELDS = (
    Field(name="b", kind=FieldKind.SCALABLE, is_int=True, doc="sequences"),
    Field(name="t", kind=FieldKind.SCALABLE, is_int=True, doc="new tokens of all sequences together"),
    Field(name="s", kind=FieldKind.SCALABLE, is_int=True, doc="longest sequence, new tokens included"),
    *HEAD_FIELDS,
    Field(
        name="causal",
        kind=FieldKind.CATEGORICAL,
        is_int=True,
        default=1,
        doc="`1`: a query sees no key behind its own; `0`: all of its sequence",
    ),
    Field(
        name="qscale",
        kind=FieldKind.CATEGORICAL,
        is_int=False,
        default="none",
        doc="what has a scale of its own in queries that are codes of the cache's dtype: `tensor`, `token` (and head); "
        "`none`: queries are in dtype",
    ),
    workload_field(WORKLOADS),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem(CacheAttention):
    """One call, without its arrays.

    Query ``i`` of a sequence of ``L`` tokens, ``Q`` of them new, stands at position ``L - Q + i`` and sees the keys
    from ``window`` before it to itself; one at a position below zero sees nothing. Of a call that is not causal every
    query sees all keys of its sequence, which may have fewer tokens than queries. All other attributes are those of
    ``CacheAttention``.

    Attributes:
      tokens: the queries: the new tokens of all sequences, and padding.
      causal: a query sees no key behind its own position.
      q_scale: which parts of queries have a float32 scale of their own, by which their codes are multiplied; such
        queries have the dtype of the cache. ``none``: queries are no codes.

    Raises:
      UsageError: an impossible size or flag, a window that no position bounds, or codes of queries that no cache of
        codes is multiplied with; the message names it.
    """

    NAME: ClassVar = NAME
    VERSION: ClassVar = VERSION
    FIELDS: ClassVar = FIELDS
    QUERIES: ClassVar = {"tokens": "t"}
    FLAGS: ClassVar = {"causal": "causal"}
    WORDS: ClassVar = {"q_scale": "qscale"}
    LAYOUTS: ClassVar = (*LAYOUTS, LATENT)
    SCALES: ClassVar = (*SCALES, BLOCK)

    tokens: int
    causal: bool = True
    q_scale: str = "none"

    def __post_init__(self):
        CacheAttention.__post_init__(self)
        if self.window is not None and not self.causal:
            raise UsageError(f"left={self.window} (window) counts from a query's own position; it needs causal=1")
        check_choice("qscale", self.q_scale, Q_SCALES, name="q_scale")
        if self.q_scale != "none" and (self.kv_dtype == SAME or self.layout == LATENT):
            raise UsageError(f"qscale={self.q_scale} needs a cache of codes with keys and values apart from each other")

    @property
    def q_dtype(self) -> str:
        """The dtype of the queries by name."""
        return self.dtype if self.q_scale == "none" else self.kv_dtype

    @property
    def sequences(self) -> tuple[tuple[int, int], ...]:
        """The new tokens and the tokens that count of each of the inputs' sequences, as in ``given_sequences``."""
        return tuple((new, min(max(length, 0), self.input_capacity)) for new, length in self.given_sequences)

    @property
    def given_sequences(self) -> tuple[tuple[int, int], ...]:
        """The new tokens and the given length of each of the inputs' sequences; those that decode come first."""
        if self.at_edges:
            return self._at_edges()
        if self.workload == "mix":
            chunks = max(1, self.batch // _CHUNKS_EVERY)
            lengths = profile_lengths("uni", self.batch, self.kv_len)
            decodes = min(self.batch - chunks, self.tokens - 1)
            left = self.tokens - decodes
            # Chunks belong to the longest sequences.
            shares = [left // chunks + (i < left % chunks) for i in range(chunks)]
            new = [1] * decodes + [0] * (self.batch - chunks - decodes) + shares
        else:
            lengths = profile_lengths(self.workload, self.batch, self.kv_len)
            total = sum(lengths)
            ends = [round(end * self.tokens / total) for end in itertools.accumulate(lengths, initial=0)]
            new = [end - begin for begin, end in itertools.pairwise(ends)]
        return tuple((min(n, length), length) for n, length in zip(new, lengths, strict=True))

    def _at_edges(self) -> tuple[tuple[int, int], ...]:
        left = max(0, self.tokens - PADDING)
        found: list[tuple[int, int]] = []
        edges = (*_EDGES, *zip((1, 2), self.tile_ends, strict=True))
        for i in range(self.batch):
            new, length = edges[i % len(edges)]
            length = self.input_capacity if length is None else length
            # The sequences after this one have some of what is left too.
            new = min(left, left // 2 + 1 if new is None else new)
            found.append((new, length))
            left -= new
        return tuple(found)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The tokens that count of each of the inputs' sequences."""
        return tuple(length for _, length in self.sequences)


def flops(problem: Problem, direction: str) -> int:
    """Floating-point operations of the visible pairs of the inputs' sequences, two per multiply-add."""
    p = problem
    if p.causal:
        pairs = sum(_pairs(p, length) - _pairs(p, max(0, length - new)) for new, length in p.sequences)
    else:
        pairs = sum(new * length for new, length in p.sequences)
    return 2 * p.num_q_heads * pairs * (p.head_dim + p.v_head_dim)


def _pairs(p: Problem, length: int) -> int:
    """The visible pairs of all queries of a whole sequence."""
    if p.window is None or length <= p.window:
        return length * (length + 1) // 2
    return p.window * (p.window + 1) // 2 + (length - p.window) * (p.window + 1)


def bytes_moved(problem: Problem, direction: str) -> int:
    """The fewest bytes: each visible key and value read once, queries read once, outputs written once."""
    p = problem
    keys = sum(length if p.window is None else min(length, p.window + new) for new, length in p.sequences if new)
    least = least_bytes(p, keys, p.tokens)
    if p.q_scale == "none":
        return least
    # Of a query that is codes one byte a column is read instead, and a scale.
    scale = 4 if p.q_scale == "token" else 0
    return least + p.tokens * p.num_q_heads * (scale - p.head_dim * (3 if p.dtype == "float32" else 1))
