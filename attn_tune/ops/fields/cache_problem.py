"""Common fields of problems over a cache: its sizes and dtypes and, of attention over it, all but the queries."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from attn_tune.ops.fields.attention import CANONICAL_SOFT_CAP, DTYPES, all_values, check_choice, flag
from attn_tune.ops.fields.cache import (
    BLOCK,
    CODE_FIELDS,
    LATENT,
    LAYOUTS,
    PACKED,
    PLACE_FIELDS,
    SAME,
    SCALES,
    check_cache,
    packed_width,
)
from attn_tune.ops.fields.scales import default_scale
from attn_tune.ops.fields.sizes import check_sizes
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Field, FieldKind, Signature

# Of the inputs: tokens that a cache holds more than the longest sequence has, and pages that no sequence uses.
MORE = 9
UNUSED_PAGES = 3
# A token more than tiles of keys of any size hold.
_TILED = 257

_C, _S = FieldKind.CATEGORICAL, FieldKind.SCALABLE
HEAD_FIELDS = (
    Field(name="n", kind=_S, is_int=True, doc="query heads"),
    Field(name="k", kind=_S, is_int=True, doc="key/value heads"),
    Field(name="h", kind=_C, is_int=True, doc="head dim"),
    Field(name="v", kind=_C, is_int=True, doc="value head dim"),
    *PLACE_FIELDS,
    Field(name="dtype", kind=_C, is_int=False, doc="dtype of the queries and the output"),
    *CODE_FIELDS,
    Field(name="left", kind=_S, is_int=True, default=None, doc="window: positions visible to the left"),
    Field(name="sinks", kind=_C, is_int=True, default=0, doc="`1`: one sink logit a head"),
    Field(name="cap", kind=_C, is_int=True, default=0, doc="`1`: tanh soft cap"),
)
_SIZES = {
    "batch": "b",
    "kv_len": "s",
    "num_q_heads": "n",
    "num_kv_heads": "k",
    "head_dim": "h",
    "v_head_dim": "v",
}
_FLAGS = {"page_size": "page", "layout": "layout", "dtype": "dtype", "kv_dtype": "kv", "kv_scale": "kvscale"}


class CacheSizes:
    """The cache of a problem.

    A problem has ``batch``, ``page_size``, ``dtype``, ``kv_dtype`` and ``input_capacity``. The sizes that begin with
    ``input`` are those of proofs and races: a kernel asks the arrays, which in a call may be larger.
    """

    __slots__ = ()

    # The layouts that a call may have, and what may have a scale of its own.
    LAYOUTS: ClassVar[tuple[str, ...]] = LAYOUTS
    SCALES: ClassVar[tuple[str, ...]] = SCALES

    @property
    def cache_dtype(self: Any) -> str:
        """The dtype of the cache by name."""
        if self.kv_scale == BLOCK:
            return PACKED
        return self.dtype if self.kv_dtype == SAME else self.kv_dtype

    @property
    def input_width(self: Any) -> int:
        """The pages of a sequence in the inputs' table; 0 for a contiguous cache."""
        return self.input_capacity // self.page_size if self.page_size else 0

    @property
    def input_sizes(self: Any) -> tuple[int, int]:
        """The pages and the tokens of a page of the inputs' cache; a paged one has pages that no sequence uses."""
        if not self.page_size:
            return self.batch, self.input_capacity
        return self.batch * self.input_width + UNUSED_PAGES, self.page_size


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheAttention(CacheSizes):
    """One call of attention over a cache, without its arrays and without the number of its queries.

    Attributes:
      batch: the number of sequences.
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
      workload: the profile of the sequences' lengths.
      at_edges: the inputs have lengths at the edges instead. Not in the signature.

    Raises:
      UsageError: an impossible size or flag; the message names it.
    """

    NAME: ClassVar[str]
    VERSION: ClassVar[int]
    FIELDS: ClassVar[tuple[Field, ...]]
    # Words of signatures by attributes: what a kind of problem has beside these.
    QUERIES: ClassVar[dict[str, str]]
    # The same of attributes that are true or false, and of those that are words.
    FLAGS: ClassVar[dict[str, str]] = {}
    WORDS: ClassVar[dict[str, str]] = {}

    batch: int
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
        check_sizes(self, _SIZES | self.QUERIES)
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
    def cache_width(self) -> int:
        """The elements of the last axis of the keys' cache."""
        return packed_width(self.head_dim, self.v_head_dim) if self.kv_scale == BLOCK else self.head_dim

    @property
    def input_capacity(self) -> int:
        """The tokens of a sequence that the inputs' cache holds: whole pages; at the edges more than ``kv_len``."""
        most = self.kv_len + (MORE + self.page_size if self.at_edges else 0)
        return -(-most // self.page_size) * self.page_size if self.page_size else most

    @property
    def tile_ends(self) -> tuple[int, int]:
        """Lengths that end with the first token of a tile of any size, and whose last token's window begins so."""
        return min(_TILED, self.kv_len), min(_TILED + (self.window or 0), self.kv_len)

    @property
    def signature(self) -> Signature:
        """The problem's key."""
        values = {word: getattr(self, name) for name, word in (_SIZES | self.QUERIES | _FLAGS | self.WORDS).items()}
        values |= {
            # One that hides nothing of the longest sequence expected; of a longer one it hides something all the same.
            "left": None if self.window is None or self.window >= self.kv_len - 1 else self.window,
            "sinks": int(self.has_sinks),
            "cap": int(self.soft_cap is not None),
            "workload": self.workload,
        }
        values |= {word: int(getattr(self, name)) for name, word in self.FLAGS.items()}
        return Signature.build(self.NAME, self.VERSION, self.FIELDS, values)

    @classmethod
    def from_signature(cls, signature: Signature) -> Self:
        """A problem with this signature; scale is ``1/sqrt(H)`` and the cap takes its canonical value."""
        values = all_values(signature, cls.FIELDS)
        flags: dict[str, Any] = {name: flag(values, word) for name, word in cls.FLAGS.items()}
        return cls(
            **{name: values[word] for name, word in (_SIZES | cls.QUERIES | _FLAGS | cls.WORDS).items()},
            **flags,
            window=values["left"],
            has_sinks=flag(values, "sinks"),
            soft_cap=CANONICAL_SOFT_CAP if flag(values, "cap") else None,
            scale=default_scale(values["h"]),
            workload=values["workload"],
        )


def least_bytes(problem: CacheAttention, keys: int, queries: int) -> int:
    """The bytes of so many keys and values read once, queries read once, and outputs written once."""
    p = problem
    code = 4 if p.cache_dtype == "float32" else 2 if p.kv_dtype == SAME else 1
    width, scales = (p.head_dim, 4) if p.layout == LATENT else (p.head_dim + p.v_head_dim, 8)
    per_key = p.num_kv_heads * (width * code + (scales if p.kv_scale == "token" else 0))
    if p.kv_scale == BLOCK:
        per_key = p.cache_width
    per_query = p.num_q_heads * ((p.head_dim + p.v_head_dim) * (4 if p.dtype == "float32" else 2) + 4)
    return keys * per_key + queries * per_query
