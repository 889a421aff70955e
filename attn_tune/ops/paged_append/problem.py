"""The static half of one update of a cache: sizes, layout, dtypes, and the op's signature."""

from dataclasses import dataclass

from attn_tune.ops.fields.attention import DTYPES, all_values, check_choice, flag
from attn_tune.ops.fields.cache import CODE_FIELDS, CODES, PLACE_FIELDS, SAME, check_cache
from attn_tune.ops.fields.cache_problem import CacheSizes
from attn_tune.ops.fields.sizes import check_sizes
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Field, FieldKind, Signature

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"

NAME = "paged_append"
VERSION = 1
# Of the inputs: the most tokens that a sequence holds before.
MOST_BEFORE = 29
# Tokens of a ragged call that belong to no sequence.
PADDING = 3

_C, _S = FieldKind.CATEGORICAL, FieldKind.SCALABLE

FIELDS = (
    Field(name="b", kind=_S, is_int=True, doc="sequences"),
    Field(name="t", kind=_S, is_int=True, doc="new tokens of all sequences together"),
    Field(name="k", kind=_S, is_int=True, doc="key/value heads"),
    Field(name="h", kind=_C, is_int=True, doc="head dim"),
    Field(name="v", kind=_C, is_int=True, doc="value head dim"),
    *PLACE_FIELDS,
    Field(name="dtype", kind=_C, is_int=False, doc="dtype of the new keys and values"),
    *CODE_FIELDS,
    Field(name="ragged", kind=_C, is_int=True, default=0, doc="`1`: sequences have different numbers of new tokens"),
)
_SIZES = {"batch": "b", "tokens": "t", "num_kv_heads": "k", "head_dim": "h", "v_head_dim": "v"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem(CacheSizes):
    """One call, without its arrays.

    Attributes:
      batch: the number of sequences.
      tokens: the new tokens of all sequences together.
      num_kv_heads: the number of key/value heads.
      head_dim: the width of keys.
      v_head_dim: the width of values.
      page_size: the tokens of a page; 0 for a contiguous cache, which has no page table.
      layout: the order of the cache's axes (``ops/fields/cache.py``).
      dtype: the dtype of the new keys and values.
      kv_dtype: the dtype of the cache; ``same`` as theirs, or that of codes.
      kv_scale: which parts of the cache have a float32 scale of their own, by which codes are multiplied. Those of
        tokens are made by the call, all others are given.
      ragged: sequences have different numbers of new tokens, which an array says; otherwise all have as many.
      at_edges: the inputs have lengths at the edges: empty sequences, tokens before the first and behind the last
        place, and sequences without pages. Not in the signature.

    Raises:
      UsageError: an impossible size or flag; the message names it.
    """

    batch: int
    tokens: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    page_size: int = 0
    layout: str = "nhd"
    dtype: str = "bfloat16"
    kv_dtype: str = SAME
    kv_scale: str = "none"
    ragged: bool = False
    at_edges: bool = False

    def __post_init__(self):
        check_sizes(self, _SIZES)
        check_choice("dtype", self.dtype, DTYPES)
        check_cache(self)
        if not self.ragged and self.tokens % self.batch:
            raise UsageError(
                f"t={self.tokens} (tokens) must be a multiple of b={self.batch} (batch), or the call ragged: ragged=1"
            )

    @property
    def new_lengths(self) -> tuple[int, ...]:
        """The new tokens of each sequence of the inputs; of a ragged call some have none."""
        if not self.ragged:
            return (self.tokens // self.batch,) * self.batch
        used = max(1, self.tokens - PADDING) if self.at_edges else self.tokens
        shares = [(i * 7 + 3) % 5 for i in range(self.batch)]
        lengths = [used * share // sum(shares) for share in shares]
        lengths[0] += used - sum(lengths)
        return tuple(lengths)

    @property
    def input_capacity(self) -> int:
        """The tokens of a sequence that the inputs' cache holds: whole pages, more than one at the edges."""
        most = MOST_BEFORE + max(self.new_lengths) + (self.page_size if self.at_edges else 0)
        return -(-most // self.page_size) * self.page_size if self.page_size else most

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the inputs' sequences, new tokens included; at the edges some are not in the cache."""
        lengths = [i * 11 % (MOST_BEFORE + 1) + new for i, new in enumerate(self.new_lengths)]
        if self.at_edges:
            page = self.page_size or 16
            places = (self.input_capacity, self.input_capacity + 1, 0, None, page, page + 1)
            for i, place in enumerate(places[: self.batch]):
                # Of ``None`` the first new token stands before the first place.
                lengths[i] = self.new_lengths[i] - 1 if place is None else place
        return tuple(lengths)

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
            "ragged": int(self.ragged),
        }
        return Signature.build(NAME, VERSION, FIELDS, values)

    @classmethod
    def from_signature(cls, signature: Signature) -> "Problem":
        """The problem with this signature."""
        values = all_values(signature, FIELDS)
        return cls(
            **{name: values[word] for name, word in _SIZES.items()},
            page_size=values["page"],
            layout=values["layout"],
            dtype=values["dtype"],
            kv_dtype=values["kv"],
            kv_scale=values["kvscale"],
            ragged=flag(values, "ragged"),
        )


def flops(problem: Problem, direction: str) -> int:
    """One division an element of a cache of codes; without codes everything is copied."""
    p = problem
    return 0 if p.kv_dtype == SAME else sum(p.new_lengths) * p.num_kv_heads * (p.head_dim + p.v_head_dim)


def bytes_moved(problem: Problem, direction: str) -> int:
    """The fewest bytes: each new key and value read once and written once, and the scales of tokens."""
    p = problem
    size = 4 if p.dtype == "float32" else 2
    width = (p.head_dim + p.v_head_dim) * (size + (1 if p.cache_dtype in CODES else size))
    return sum(p.new_lengths) * p.num_kv_heads * (width + (8 if p.kv_scale == "token" else 0))
