"""The static half of one decoding call over a cache: sizes, layout, dtypes and flags, and the op's signature."""

import math
from dataclasses import dataclass

from attn_tune.ops.contract import workload_field
from attn_tune.ops.fields.attention import CANONICAL_SOFT_CAP, DTYPES, all_values, check_choice, flag
from attn_tune.ops.fields.cache import CODE_FIELDS, CODES, PLACE_FIELDS, SAME, check_cache, check_sizes
from attn_tune.ops.workloads import LENGTHS, profile_lengths
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Field, FieldKind, Signature

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"

NAME = "paged_decode"
VERSION = 1
MOST_QUERIES = 8
# Of the inputs: tokens that a cache holds more than the longest sequence has, and pages that no sequence uses.
MORE = 9
UNUSED_PAGES = 3

_C, _S = FieldKind.CATEGORICAL, FieldKind.SCALABLE

FIELDS = (
    Field(name="b", kind=_S, is_int=True, doc="sequences"),
    # Few values, and each is another kind of work: one query a step, or the verification of a draft.
    Field(name="t", kind=_C, is_int=True, doc="new tokens of a sequence, 1 to 8"),
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
    workload_field(LENGTHS),
)
_SIZES = {
    "batch": "b",
    "q_len": "t",
    "kv_len": "s",
    "num_q_heads": "n",
    "num_kv_heads": "k",
    "head_dim": "h",
    "v_head_dim": "v",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One call, without its arrays.

    Query ``i`` of a sequence of ``L`` tokens, the new ones included, stands at position ``L - T + i`` and sees the keys
    from ``window`` before it to itself.

    Attributes:
      batch: the number of sequences.
      q_len: ``T``, the new tokens of each sequence.
      kv_len: the length of the longest sequence that is expected. Longer ones that fit the cache are right too.
      num_q_heads, num_kv_heads: the numbers of heads; the former is a multiple of the latter.
      head_dim: the width of queries and keys.
      v_head_dim: the width of values and of the output.
      page_size: the tokens of a page; 0 for a contiguous cache, which has no page table.
      layout: the order of the cache's axes (``layout.py``).
      dtype: the dtype of the queries and of the output.
      kv_dtype: the dtype of the cache; ``same`` as the queries', or that of codes.
      kv_scale: which parts of the cache have a float32 scale of their own, by which their codes are multiplied.
      window: the number of positions before its own that a query sees; None is all.
      has_sinks: one extra logit per query head joins the softmax and is dropped from the output.
      soft_cap: logits become ``cap * tanh(logits / cap)``.
      scale: multiplies the logits first. Not in the signature.
      workload: the profile of the sequences' lengths.
      at_edges: the inputs have lengths at the edges instead: nothing, one token, a page, a page and one. Not in the
        signature.

    Raises:
      UsageError: an impossible size or flag; the message names it.
    """

    batch: int
    q_len: int
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
        if self.q_len > MOST_QUERIES:
            raise UsageError(f"t={self.q_len} (q_len) is above {MOST_QUERIES}: longer chunks are prefill")
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
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the inputs' sequences, those of the workload ascending."""
        if self.at_edges:
            page = self.page_size or 16
            edges = (self.kv_len, 0, 1, page, page + 1, self.kv_len - 1)
            return tuple(min(edges[i % len(edges)], self.kv_len) for i in range(self.batch))
        return profile_lengths(self.workload, self.batch, self.kv_len)

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


def visible_keys(problem: Problem, length: int) -> int:
    """The keys of a sequence of ``length`` tokens that at least one of its queries sees."""
    return length if problem.window is None else min(length, problem.window + problem.q_len)


def flops(problem: Problem, direction: str) -> int:
    """Floating-point operations of the visible pairs of the workload's lengths, two per multiply-add."""
    pairs = 0
    for length in problem.lengths:
        for position in range(max(0, length - problem.q_len), length):
            pairs += position + 1 if problem.window is None else min(position, problem.window) + 1
    return 2 * problem.num_q_heads * pairs * (problem.head_dim + problem.v_head_dim)


def bytes_moved(problem: Problem, direction: str) -> int:
    """The fewest bytes: each visible key and value read once, queries read once, outputs written once."""
    p = problem
    keys = sum(visible_keys(p, length) for length in p.lengths)
    code = 4 if p.cache_dtype == "float32" else 1 if p.cache_dtype in CODES else 2
    per_key = p.num_kv_heads * ((p.head_dim + p.v_head_dim) * code + (8 if p.kv_scale == "token" else 0))
    per_query = p.num_q_heads * ((p.head_dim + p.v_head_dim) * (4 if p.dtype == "float32" else 2) + 4)
    return keys * per_key + p.batch * p.q_len * per_query
