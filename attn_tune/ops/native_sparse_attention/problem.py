"""The static half of one call of attention to selected blocks: sizes, dtype, and the op's signature."""

import functools
import itertools
from dataclasses import dataclass

from attn_tune.ops.contract import Workload, workload_field
from attn_tune.ops.fields.attention import DTYPES, SIZE_FIELDS, all_values, check_choice, flag
from attn_tune.ops.fields.scales import default_scale
from attn_tune.ops.fields.sizes import check_sizes
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Field, FieldKind, Signature

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"

NAME = "native_sparse_attention"
VERSION = 1
LEAST_BLOCK, LARGEST_BLOCK, DEFAULT_BLOCK = 16, 256, 64
LOCAL, RANDOM, SAME = "local", "random", "same"
WORKLOADS = (
    Workload(name=LOCAL, summary="its own block, the first and the one before its own, and others at random"),
    Workload(name=RANDOM, summary="blocks at random among those up to its own"),
    Workload(name=SAME, summary="the first blocks of the sequence, the same for all queries"),
)

_C, _S = FieldKind.CATEGORICAL, FieldKind.SCALABLE
FIELDS = (
    *SIZE_FIELDS,
    Field(name="top", kind=_S, is_int=True, doc="blocks that a query names"),
    Field(name="block", kind=_C, is_int=True, default=DEFAULT_BLOCK, doc="keys of a block"),
    Field(name="dtype", kind=_C, is_int=False, doc="dtype of queries, keys, values and the output"),
    Field(name="ragged", kind=_C, is_int=True, default=0, doc="`1`: b sequences end to end in t tokens"),
    workload_field(WORKLOADS),
)
_SIZES = {
    "batch": "b",
    "q_len": "t",
    "kv_len": "s",
    "num_q_heads": "n",
    "num_kv_heads": "k",
    "head_dim": "h",
    "v_head_dim": "v",
    "num_selected": "top",
}
_WORDS = _SIZES | {"block_size": "block", "dtype": "dtype", "workload": "workload"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One call, without its arrays.

    Attributes:
      batch: the number of sequences.
      q_len, kv_len: queries and keys of a sequence, the last query beside the last key; of packed sequences the tokens
        of all.
      num_q_heads, num_kv_heads: the numbers of heads; the queries of a group share a key head and its blocks.
      head_dim: the width of queries and keys.
      v_head_dim: the width of values and of the output.
      num_selected: the blocks that a query names, entries that name nothing among them.
      block_size: keys of a block, a power of two from 16 to 256.
      dtype: the dtype of queries, keys, values and the output.
      is_packed: sequences lie end to end in a batch of one, and blocks are counted from the first token of each.
      scale: multiplies the logits. Not in the signature.
      workload: the blocks that queries of the inputs name.
      at_edges: inputs have every kind of row: entries that name nothing at its end, in its middle and everywhere,
        blocks beyond the query's own, and blocks that are named twice. Not in the signature.
      has_lse_gradient: inputs of the backward have a cotangent of the lse. Not in the signature.

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
    num_selected: int
    block_size: int = DEFAULT_BLOCK
    dtype: str = "bfloat16"
    is_packed: bool = False
    scale: float = 1.0
    workload: str = LOCAL
    at_edges: bool = False
    has_lse_gradient: bool = False

    def __post_init__(self):
        check_sizes(self, _SIZES)
        check_choice("dtype", self.dtype, DTYPES)
        check_choice("workload", self.workload, (LOCAL, RANDOM, SAME))
        if self.num_q_heads % self.num_kv_heads:
            raise UsageError(f"n={self.num_q_heads} must be a multiple of k={self.num_kv_heads}")
        size = self.block_size
        if not LEAST_BLOCK <= size <= LARGEST_BLOCK or size & (size - 1):
            raise UsageError(
                f"block_size={size!r} (block) must be a power of two between {LEAST_BLOCK} and {LARGEST_BLOCK}"
            )
        if self.is_packed and self.q_len != self.kv_len:
            raise UsageError(f"packed sequences have as many queries as keys, got t={self.q_len} and s={self.kv_len}")

    @property
    def signature(self) -> Signature:
        """The problem's key."""
        values = {word: getattr(self, name) for name, word in _WORDS.items()}
        return Signature.build(NAME, VERSION, FIELDS, values | {"ragged": int(self.is_packed)})

    @classmethod
    def from_signature(cls, signature: Signature) -> "Problem":
        """A problem with this signature; scale is ``1/sqrt(H)``."""
        values = all_values(signature, FIELDS)
        return cls(
            **{name: values[word] for name, word in _WORDS.items()},
            is_packed=flag(values, "ragged"),
            scale=default_scale(values["h"]),
        )

    @property
    def rows(self) -> int:
        """The size of the arrays' first axis: one where sequences are packed."""
        return 1 if self.is_packed else self.batch

    @property
    def group_size(self) -> int:
        """Query heads per key head."""
        return self.num_q_heads // self.num_kv_heads

    @property
    def offset(self) -> int:
        """The position of query 0 among the keys."""
        return self.kv_len - self.q_len

    @property
    def blocks(self) -> int:
        """The most blocks that the keys of one row of the arrays can have."""
        full = self.kv_len // self.block_size
        return full + self.batch if self.is_packed else -(-self.kv_len // self.block_size)

    @property
    def borders(self) -> tuple[int, ...]:
        """The first token of each packed sequence of the workload, and the end of the last; uneven lengths.

        At the edges one sequence is empty, and tokens are left over behind the last one.
        """
        weights = [1 + 7 * i % 5 for i in range(self.batch)]
        length = self.kv_len
        if self.at_edges and self.batch > 2:
            weights[1], length = 0, max(1, length - 3)
        ends = [length * sum(weights[: i + 1]) // sum(weights) for i in range(self.batch)]
        return (0, *ends)


@functools.lru_cache(maxsize=256)
def selected_pairs(problem: Problem) -> int:
    """Pairs (query, key) that one key head's queries of the workload see, of all sequences; without edges.

    Of blocks at random it is the expected number.
    """
    p, size = problem, problem.block_size
    if p.is_packed:
        spans = [(0, end - first) for first, end in itertools.pairwise(p.borders)]
    else:
        spans = [(p.offset, p.kv_len)] * p.batch
    total = 0.0
    for first, end in spans:
        for position in range(max(first, 0), end):
            seen = position // size + 1
            named, missing = min(p.num_selected, seen), size - 1 - position % size
            # The query's own block is not whole.
            share = {LOCAL: 1.0, RANDOM: named / seen, SAME: float(named == seen)}[p.workload]
            total += named * size - share * missing
    return round(total)


def flops(problem: Problem, direction: str) -> int:
    """Floating-point operations of the selected pairs, two per multiply-add. Backward: 2.5 times the forward's."""
    forward = 2 * problem.num_q_heads * selected_pairs(problem) * (problem.head_dim + problem.v_head_dim)
    return forward if direction == "fwd" else forward * 5 // 2


def bytes_moved(problem: Problem, direction: str) -> int:
    """The fewest bytes: each input read once, each output written once, all keys counted."""
    p = problem
    size = 4 if p.dtype == "float32" else 2
    queries, keys = p.rows * p.q_len, p.rows * p.kv_len
    width = p.head_dim + p.v_head_dim
    # The forward reads queries and writes as many values; the backward has the output and three gradients besides.
    times, statistics = (1, 1) if direction == "fwd" else (2, 2)
    of_queries = p.num_q_heads * (times * width * size + statistics * 4) + p.num_kv_heads * p.num_selected * 4
    return queries * of_queries + times * keys * p.num_kv_heads * width * size
