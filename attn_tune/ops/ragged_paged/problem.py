"""The static half of one call over sequences with different numbers of new tokens, and the op's signature."""

import itertools
import math
from dataclasses import dataclass

from attn_tune.ops.contract import Workload, workload_field
from attn_tune.ops.fields.attention import CANONICAL_SOFT_CAP, DTYPES, all_values, check_choice, flag
from attn_tune.ops.fields.cache import CODE_FIELDS, CODES, PLACE_FIELDS, SAME, check_cache, check_sizes
from attn_tune.ops.workloads import LENGTHS, profile_lengths
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Field, FieldKind, Signature

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"

NAME = "ragged_paged"
VERSION = 1
# Of the inputs: tokens that a cache holds more than the longest sequence has, and pages that no sequence uses.
MORE = 9
UNUSED_PAGES = 3
# Queries at the edges that belong to no sequence, and of the sequences there queries and tokens; None is all there are.
PADDING = 3
_EDGES = ((1, None), (1, 1), (0, 5), (3, 3), (4, 2), (None, None), (0, 0), (1, 9), (5, 21))
# Of ``mix``, one sequence in so many has all the queries that are left when the others have one each.
_CHUNKS_EVERY = 8
WORKLOADS = (
    *LENGTHS,
    Workload(name="mix", summary="seven of eight sequences decode one token, lengths as of uni; the rest are chunks"),
)

_C, _S = FieldKind.CATEGORICAL, FieldKind.SCALABLE

FIELDS = (
    Field(name="b", kind=_S, is_int=True, doc="sequences"),
    Field(name="t", kind=_S, is_int=True, doc="new tokens of all sequences together"),
    Field(name="s", kind=_S, is_int=True, doc="longest sequence, new tokens included"),
    Field(name="n", kind=_S, is_int=True, doc="query heads"),
    Field(name="k", kind=_S, is_int=True, doc="key/value heads"),
    Field(name="h", kind=_C, is_int=True, doc="head dim"),
    Field(name="v", kind=_C, is_int=True, doc="value head dim"),
    *PLACE_FIELDS,
    Field(name="dtype", kind=_C, is_int=False, doc="dtype of the queries and the output"),
    *CODE_FIELDS,
    Field(name="left", kind=_S, is_int=True, default=None, doc="window: positions visible to the left"),
    Field(name="sinks", kind=_C, is_int=True, default=0, doc="1: one sink logit a head"),
    Field(name="cap", kind=_C, is_int=True, default=0, doc="1: tanh soft cap"),
    workload_field(WORKLOADS),
)
_SIZES = {
    "batch": "b",
    "tokens": "t",
    "kv_len": "s",
    "num_q_heads": "n",
    "num_kv_heads": "k",
    "head_dim": "h",
    "v_head_dim": "v",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One call, without its arrays.

    Query ``i`` of a sequence of ``L`` tokens, the new ones included, ``Q`` of them new, stands at position ``L - Q +
    i`` and sees the keys from ``window`` before it to itself; one at a position below zero sees nothing.

    Attributes:
      batch: the number of sequences.
      tokens: the new tokens of all sequences together.
      kv_len: the length of the longest sequence that is expected. Longer ones that fit the cache are right too.
      num_q_heads, num_kv_heads: the numbers of heads; the former is a multiple of the latter.
      head_dim: the width of queries and keys.
      v_head_dim: the width of values and of the output.
      page_size: the tokens of a page; 0 for a contiguous cache, which has no page table.
      layout: the order of the cache's axes (``ops/fields/cache.py``).
      dtype: the dtype of the queries and of the output.
      kv_dtype: the dtype of the cache; ``same`` as the queries', or that of codes.
      kv_scale: which parts of the cache have a float32 scale of their own, by which their codes are multiplied.
      window: the number of positions before its own that a query sees; None is all.
      has_sinks: one extra logit per query head joins the softmax and is dropped from the output.
      soft_cap: logits become ``cap * tanh(logits / cap)``.
      scale: multiplies the logits first. Not in the signature.
      workload: the profile of the sequences' lengths, to which their new tokens are in proportion but of ``mix``.
      at_edges: the inputs have lengths at the edges instead: sequences without new tokens, without any, with more new
        ones than there are, and queries that belong to no sequence. Not in the signature.

    Raises:
      UsageError: an impossible size or flag; the message names it.
    """

    batch: int
    tokens: int
    kv_len: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    page_size: int = 0
    layout: str = "nhd"
    dtype: str = "bfloat16"
    kv_dtype: str = SAME
    kv_scale: str = "none"
    window: int | None = None
    has_sinks: bool = False
    soft_cap: float | None = None
    scale: float = 1.0
    workload: str = "eq"
    at_edges: bool = False

    def __post_init__(self):
        check_sizes(self, _SIZES)
        if self.num_q_heads % self.num_kv_heads:
            raise UsageError(
                f"n={self.num_q_heads} (num_q_heads) must be a multiple of k={self.num_kv_heads} (num_kv_heads)"
            )
        check_choice("dtype", self.dtype, DTYPES)
        check_cache(self)
        if self.window is not None and not (type(self.window) is int and self.window >= 0):
            raise UsageError(f"left={self.window!r} (window) must be non-negative, or left out")
        if self.soft_cap is not None and not (math.isfinite(self.soft_cap) and self.soft_cap > 0):
            raise UsageError(f"logits_soft_cap must be positive, got {self.soft_cap!r}")

    @property
    def group_size(self) -> int:
        """Query heads per key/value head."""
        return self.num_q_heads // self.num_kv_heads

    @property
    def cache_dtype(self) -> str:
        """The dtype of the cache by name."""
        return self.dtype if self.kv_dtype == SAME else self.kv_dtype

    @property
    def sequences(self) -> tuple[tuple[int, int], ...]:
        """The new tokens and the length of each of the inputs' sequences; those that decode one token come first."""
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
        left, found = max(0, self.tokens - PADDING), []
        for i in range(self.batch):
            new, length = _EDGES[i % len(_EDGES)]
            length = self.kv_len if length is None else min(length, self.kv_len)
            # The sequences after this one have some of what is left too.
            new = min(left, left // 2 + 1 if new is None else new)
            found.append((new, length))
            left -= new
        return tuple(found)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the inputs' sequences."""
        return tuple(length for _, length in self.sequences)

    @property
    def capacity(self) -> int:
        """The tokens of a sequence that the inputs' cache holds: whole pages, and some that nothing uses."""
        most = self.kv_len + (MORE if self.at_edges else 0)
        return -(-most // self.page_size) * self.page_size if self.page_size else most

    @property
    def table_width(self) -> int:
        """The pages of a sequence in the inputs' table; 0 for a contiguous cache."""
        return self.capacity // self.page_size if self.page_size else 0

    @property
    def cache_sizes(self) -> tuple[int, int]:
        """The pages and the tokens of a page of the inputs' cache; a paged one has pages that no sequence uses."""
        if not self.page_size:
            return self.batch, self.capacity
        return self.batch * self.table_width + UNUSED_PAGES, self.page_size

    @property
    def signature(self) -> Signature:
        """The problem's key."""
        values = {word: getattr(self, name) for name, word in _SIZES.items()}
        values |= {
            "page": self.page_size,
            "layout": self.layout,
            "dtype": self.dtype,
            "kv": self.kv_dtype,
            "kvscale": self.kv_scale,
            # One that hides nothing of the longest sequence expected; of a longer one it hides something all the same.
            "left": None if self.window is None or self.window >= self.kv_len - 1 else self.window,
            "sinks": int(self.has_sinks),
            "cap": int(self.soft_cap is not None),
            "workload": self.workload,
        }
        return Signature.build(NAME, VERSION, FIELDS, values)

    @classmethod
    def from_signature(cls, signature: Signature) -> "Problem":
        """A problem with this signature; scale is ``1/sqrt(H)`` and the cap takes its canonical value."""
        values = all_values(signature, FIELDS)
        return cls(
            **{name: values[word] for name, word in _SIZES.items()},
            page_size=values["page"],
            layout=values["layout"],
            dtype=values["dtype"],
            kv_dtype=values["kv"],
            kv_scale=values["kvscale"],
            window=values["left"],
            has_sinks=flag(values, "sinks"),
            soft_cap=CANONICAL_SOFT_CAP if flag(values, "cap") else None,
            scale=1.0 / math.sqrt(values["h"]),
            workload=values["workload"],
        )


def flops(problem: Problem, direction: str) -> int:
    """Floating-point operations of the visible pairs of the inputs' sequences, two per multiply-add."""
    p = problem
    pairs = sum(_pairs(p, length) - _pairs(p, max(0, length - new)) for new, length in p.sequences)
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
    code = 4 if p.cache_dtype == "float32" else 1 if p.cache_dtype in CODES else 2
    per_key = p.num_kv_heads * ((p.head_dim + p.v_head_dim) * code + (8 if p.kv_scale == "token" else 0))
    per_query = p.num_q_heads * ((p.head_dim + p.v_head_dim) * (4 if p.dtype == "float32" else 2) + 4)
    return keys * per_key + p.tokens * per_query
