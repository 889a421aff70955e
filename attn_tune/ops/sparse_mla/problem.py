"""The static half of one call of sparse latent attention: sizes, dtype, and the op's signature."""

from dataclasses import dataclass

from attn_tune.ops.contract import Workload, workload_field
from attn_tune.ops.fields.attention import DTYPES, all_values, check_choice, flag
from attn_tune.ops.fields.scales import default_scale
from attn_tune.ops.fields.sizes import check_sizes
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Field, FieldKind, Signature

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"

NAME = "sparse_mla"
VERSION = 1
CAUSAL, ANY = "causal", "any"
WORKLOADS = (
    Workload(name=CAUSAL, summary="the last query stands at the last key, and each selects from those up to its own"),
    Workload(name=ANY, summary="each query selects from all keys, as from the pages of a pool"),
)

_C, _S = FieldKind.CATEGORICAL, FieldKind.SCALABLE
FIELDS = (
    Field(name="b", kind=_S, is_int=True, doc="sequences"),
    Field(name="t", kind=_S, is_int=True, doc="queries of a sequence"),
    Field(name="s", kind=_S, is_int=True, doc="keys of a sequence, or tokens of a pool"),
    Field(name="n", kind=_S, is_int=True, doc="query heads"),
    Field(name="h", kind=_C, is_int=True, doc="width of keys: latent and rotary part"),
    Field(name="v", kind=_C, is_int=True, doc="width of latents, which are the values"),
    Field(name="top", kind=_S, is_int=True, doc="indices of a query"),
    Field(name="dtype", kind=_C, is_int=False, doc="dtype of queries, keys and the output"),
    Field(name="sinks", kind=_C, is_int=True, default=0, doc="`1`: one sink logit a head"),
    workload_field(WORKLOADS),
)
_SIZES = {
    "batch": "b",
    "q_len": "t",
    "kv_len": "s",
    "num_q_heads": "n",
    "head_dim": "h",
    "v_head_dim": "v",
    "num_selected": "top",
}
_WORDS = _SIZES | {"dtype": "dtype", "workload": "workload"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One call, without its arrays.

    Attributes:
      batch: the number of sequences.
      q_len: the queries of a sequence.
      kv_len: the keys of a sequence, or the tokens of a pool that all queries share.
      num_q_heads: the number of query heads, which share one key.
      head_dim: the width of queries and keys.
      v_head_dim: the first so many columns of keys are the values.
      num_selected: the indices of a query, those that name nothing among them.
      dtype: the dtype of queries, keys and the output.
      has_sinks: one extra logit per query head joins the softmax and is dropped from the output.
      scale: multiplies the logits. Not in the signature.
      workload: the keys that queries of the inputs select from.
      at_edges: the inputs have every kind of row: indices that name nothing at its end, in its middle and everywhere,
        and keys that are named twice or by all. Not in the signature.

    Raises:
      UsageError: an impossible size or flag; the message names it.
    """

    batch: int
    q_len: int
    kv_len: int
    num_q_heads: int
    head_dim: int
    v_head_dim: int
    num_selected: int
    dtype: str = "bfloat16"
    has_sinks: bool = False
    scale: float = 1.0
    workload: str = CAUSAL
    at_edges: bool = False

    def __post_init__(self):
        check_sizes(self, _SIZES)
        check_choice("dtype", self.dtype, DTYPES)
        check_choice("workload", self.workload, (CAUSAL, ANY))
        if self.head_dim < self.v_head_dim:
            raise UsageError(f"values are columns of keys, got h={self.head_dim} below v={self.v_head_dim}")

    @property
    def signature(self) -> Signature:
        """The problem's key."""
        values = {word: getattr(self, name) for name, word in _WORDS.items()}
        return Signature.build(NAME, VERSION, FIELDS, values | {"sinks": int(self.has_sinks)})

    @classmethod
    def from_signature(cls, signature: Signature) -> "Problem":
        """A problem with this signature; scale is ``1/sqrt(H)``."""
        values = all_values(signature, FIELDS)
        return cls(
            **{name: values[word] for name, word in _WORDS.items()},
            has_sinks=flag(values, "sinks"),
            scale=default_scale(values["h"]),
        )

    def selectable(self, query: int) -> int:
        """The keys that query ``query`` of a sequence of the workload selects from; at the edges all."""
        if self.workload == ANY or self.at_edges:
            return self.kv_len
        return min(max(self.kv_len - self.q_len + query + 1, 0), self.kv_len)


def selected(problem: Problem) -> int:
    """The keys that all queries of the workload select, of all sequences."""
    p = problem
    return p.batch * sum(min(p.num_selected, p.selectable(query)) for query in range(p.q_len))


def flops(problem: Problem, direction: str) -> int:
    """Floating-point operations of the selected pairs, two per multiply-add."""
    return 2 * problem.num_q_heads * selected(problem) * (problem.head_dim + problem.v_head_dim)


def bytes_moved(problem: Problem, direction: str) -> int:
    """The fewest bytes: keys that can be selected read once, queries and indices read once, outputs written once."""
    p = problem
    size = 4 if p.dtype == "float32" else 2
    per_query = p.num_q_heads * ((p.head_dim + p.v_head_dim) * size + 4) + p.num_selected * 4
    return min(p.batch * p.kv_len, selected(p)) * p.head_dim * size + p.batch * p.q_len * per_query
