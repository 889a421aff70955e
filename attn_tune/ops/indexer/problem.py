"""The static half of one call of the indexer: sizes, dtype, and the op's signature."""

from dataclasses import dataclass

from attn_tune.ops.contract import Workload, workload_field
from attn_tune.ops.fields.attention import DTYPES, all_values, check_choice
from attn_tune.ops.fields.sizes import check_sizes
from attn_tune.schema.signature import Field, FieldKind, Signature

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"

NAME = "indexer"
VERSION = 1
CAUSAL, ALL = "causal", "all"
WORKLOADS = (
    Workload(name=CAUSAL, summary="the last query stands at the last key, and each scores those up to its own"),
    Workload(name=ALL, summary="each query scores all keys"),
)

_C, _S = FieldKind.CATEGORICAL, FieldKind.SCALABLE
FIELDS = (
    Field(name="b", kind=_S, is_int=True, doc="sequences"),
    Field(name="t", kind=_S, is_int=True, doc="queries of a sequence"),
    Field(name="s", kind=_S, is_int=True, doc="keys of a sequence"),
    Field(name="n", kind=_C, is_int=True, doc="index heads of a query"),
    Field(name="h", kind=_C, is_int=True, doc="width of index heads and keys"),
    Field(name="dtype", kind=_C, is_int=False, doc="dtype of queries and keys; weights and scores are float32"),
    workload_field(WORKLOADS),
)
_SIZES = {"batch": "b", "q_len": "t", "kv_len": "s", "num_q_heads": "n", "head_dim": "h"}
_WORDS = _SIZES | {"dtype": "dtype", "workload": "workload"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One call, without its arrays.

    Attributes:
      batch: the number of sequences.
      q_len: the queries of a sequence.
      kv_len: the keys of a sequence.
      num_q_heads: the number of index heads.
      head_dim: the width of index heads and keys.
      dtype: the dtype of queries and keys; weights and scores are float32.
      scale: multiplies the scores. Not in the signature.
      workload: the ranges of the inputs.
      at_edges: the inputs have every kind of range: empty ones, of one key, beyond both ends, and from the middle. Not
        in the signature.

    Raises:
      UsageError: an impossible size or dtype; the message names it.
    """

    batch: int
    q_len: int
    kv_len: int
    num_q_heads: int
    head_dim: int
    dtype: str = "bfloat16"
    scale: float = 1.0
    workload: str = CAUSAL
    at_edges: bool = False

    def __post_init__(self):
        check_sizes(self, _SIZES)
        check_choice("dtype", self.dtype, DTYPES)
        check_choice("workload", self.workload, (CAUSAL, ALL))

    @property
    def signature(self) -> Signature:
        """The problem's key."""
        return Signature.build(NAME, VERSION, FIELDS, {word: getattr(self, name) for name, word in _WORDS.items()})

    @classmethod
    def from_signature(cls, signature: Signature) -> "Problem":
        """A problem with this signature, of scale one."""
        values = all_values(signature, FIELDS)
        return cls(**{name: values[word] for name, word in _WORDS.items()})

    def visible(self, query: int) -> int:
        """The keys that query ``query`` of a sequence of the workload scores."""
        if self.workload == ALL:
            return self.kv_len
        return min(max(self.kv_len - self.q_len + query + 1, 0), self.kv_len)


def flops(problem: Problem, direction: str) -> int:
    """Floating-point operations of the products of the workload's ranges, two per multiply-add."""
    p = problem
    return 2 * p.batch * sum(map(p.visible, range(p.q_len))) * p.num_q_heads * p.head_dim


def bytes_moved(problem: Problem, direction: str) -> int:
    """The fewest bytes: keys, queries, weights and ranges read once, all scores written once."""
    p = problem
    size = 4 if p.dtype == "float32" else 2
    per_query = p.num_q_heads * (p.head_dim * size + 4) + 8 + 4 * p.kv_len
    return p.batch * (p.kv_len * p.head_dim * size + p.q_len * per_query)
