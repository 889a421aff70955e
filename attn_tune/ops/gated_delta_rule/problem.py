"""The static half of one call of the gated delta rule: sizes, dtype, flags, and the op's signature.

Letters: ``B`` sequences, ``T`` tokens, ``N`` value heads, ``K`` query/key heads, ``H`` head dim of queries and keys,
``V`` head dim of values.
"""

import itertools
import math
from dataclasses import dataclass

from attn_tune.ops.contract import Workload, workload_field
from attn_tune.ops.fields.attention import DTYPES, all_values, check_choice, flag
from attn_tune.ops.fields.cache import check_sizes
from attn_tune.ops.workloads import LENGTHS, profile_lengths
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Field, FieldKind, Signature

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"

NAME = "gated_delta_rule"
VERSION = 1
GATES = ("head", "none")
STATES = ("none", "in", "out", "both")
# Gates are never lower: here the factor ``exp(g)`` is exactly zero in float32, in base 2 too.
LOWEST_GATE = -128.0
# Of ragged inputs at the edges: tokens of no sequence, and the lengths of sequences in turn; the last one has the rest.
PADDING = 3
_EDGES = (1, 0, 17, 64, 1, 33, 0)
# Of ``mix``, one sequence in so many has all the tokens that are left when the others have one each.
_CHUNKS_EVERY = 8
WORKLOADS = (
    *LENGTHS,
    Workload(name="mix", summary="seven of eight sequences decode one token; the rest share the other tokens"),
)

_C, _S = FieldKind.CATEGORICAL, FieldKind.SCALABLE
FIELDS = (
    Field(name="b", kind=_S, is_int=True, doc="sequences"),
    Field(name="t", kind=_S, is_int=True, doc="tokens of a sequence; of a ragged call those of all together"),
    Field(name="n", kind=_S, is_int=True, doc="value heads"),
    Field(name="k", kind=_S, is_int=True, doc="query/key heads"),
    Field(name="h", kind=_C, is_int=True, doc="head dim of queries and keys"),
    Field(name="v", kind=_C, is_int=True, doc="head dim of values"),
    Field(name="dtype", kind=_C, is_int=False, doc="dtype of queries, keys and values"),
    Field(
        name="gate",
        kind=_C,
        is_int=False,
        default="head",
        doc="head: a gate for each token and value head; none: nothing is forgotten",
    ),
    Field(
        name="beta", kind=_C, is_int=True, default=1, doc="1: a strength for each token and value head; 0: all are 1"
    ),
    Field(
        name="state",
        kind=_C,
        is_int=False,
        default="none",
        doc="states: in: given at the start; out: returned at the end; both; none",
    ),
    Field(name="ragged", kind=_C, is_int=True, default=0, doc="1: sequences of different lengths, end to end"),
    workload_field(WORKLOADS),
)
_SIZES = {
    "batch": "b",
    "length": "t",
    "num_value_heads": "n",
    "num_key_heads": "k",
    "head_dim": "h",
    "v_head_dim": "v",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One call, without its arrays.

    Attributes:
      batch: the number of sequences.
      length: the tokens of each sequence; of a ragged call those of all together, and padding.
      num_value_heads: the number of heads of values, gates, strengths and states; a multiple of ``num_key_heads``.
      num_key_heads: the number of heads of queries and keys.
      head_dim: the width of queries and keys: the rows of a state.
      v_head_dim: the width of values: the columns of a state.
      dtype: the dtype of queries, keys, values and outputs; gates, strengths and states are float32.
      gate: ``head``: the state is multiplied by a factor of each token and value head; ``none``: it is not.
      has_beta: strengths of the update are given; otherwise all are one.
      has_initial_state: the state before the first token of each sequence is given; otherwise it is zero.
      has_final_state: the state after the last token of each sequence is an output.
      ragged: the sequences lie end to end in a batch of one, and an array says where each begins.
      workload: the profile of lengths of ragged inputs.
      scale: multiplies the output. Not in the signature.
      at_edges: the inputs have gates at both ends of their range, strengths up to 2, repeated keys and, if ragged,
        sequences without a token and tokens of no sequence. Not in the signature.

    Raises:
      UsageError: an impossible size or flag; the message names it.
    """

    batch: int
    length: int
    num_value_heads: int
    num_key_heads: int
    head_dim: int
    v_head_dim: int
    dtype: str = "bfloat16"
    gate: str = "head"
    has_beta: bool = True
    has_initial_state: bool = False
    has_final_state: bool = False
    ragged: bool = False
    workload: str = "eq"
    scale: float = 1.0
    at_edges: bool = False

    def __post_init__(self):
        check_sizes(self, _SIZES)
        if self.num_value_heads % self.num_key_heads:
            raise UsageError(
                f"n={self.num_value_heads} (num_value_heads) must be a multiple of "
                f"k={self.num_key_heads} (num_key_heads)"
            )
        check_choice("dtype", self.dtype, DTYPES)
        check_choice("gate", self.gate, GATES)
        check_choice("workload", self.workload, tuple(w.name for w in WORKLOADS))
        if self.workload != "eq" and not self.ragged:
            raise UsageError(f"workload={self.workload} is one of ragged sequences; it needs ragged=1")

    @property
    def group_size(self) -> int:
        """Value heads that share a query/key head: value head ``n`` has query head ``n // group_size``."""
        return self.num_value_heads // self.num_key_heads

    @property
    def has_gate(self) -> bool:
        """Whether gates are given."""
        return self.gate != "none"

    @property
    def rows(self) -> tuple[int, int]:
        """The first two sizes of all arrays of tokens: ``(1, T)`` of a ragged call, ``(B, T)`` otherwise."""
        return (1 if self.ragged else self.batch, self.length)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The tokens of each of the inputs' sequences."""
        if not self.ragged:
            return (self.length,) * self.batch
        if self.at_edges:
            found: list[int] = []
            left = max(0, self.length - PADDING)
            for i in range(self.batch - 1):
                found.append(min(left, _EDGES[i % len(_EDGES)]))
                left -= found[-1]
            return (*found, left)
        if self.workload == "mix":
            chunks = max(1, self.batch // _CHUNKS_EVERY)
            decodes = min(self.batch - chunks, self.length - 1)
            left = self.length - decodes
            shares = [left // chunks + (i < left % chunks) for i in range(chunks)]
            return (*[1] * decodes, *[0] * (self.batch - chunks - decodes), *shares)
        profile = profile_lengths(self.workload, self.batch, self.length)
        total = sum(profile)
        ends = [round(end * self.length / total) for end in itertools.accumulate(profile, initial=0)]
        return tuple(end - begin for begin, end in itertools.pairwise(ends))

    @property
    def signature(self) -> Signature:
        """The problem's key."""
        values = {word: getattr(self, name) for name, word in _SIZES.items()}
        values |= {
            "dtype": self.dtype,
            "gate": self.gate,
            "beta": int(self.has_beta),
            "state": STATES[self.has_initial_state + 2 * self.has_final_state],
            "ragged": int(self.ragged),
            "workload": self.workload,
        }
        return Signature.build(NAME, VERSION, FIELDS, values)

    @classmethod
    def from_signature(cls, signature: Signature) -> "Problem":
        """The problem with this signature; its scale is ``1/sqrt(H)``."""
        values = all_values(signature, FIELDS)
        check_choice("state", values["state"], STATES)
        return cls(
            **{name: values[word] for name, word in _SIZES.items()},
            dtype=values["dtype"],
            gate=values["gate"],
            has_beta=flag(values, "beta"),
            has_initial_state=values["state"] in ("in", "both"),
            has_final_state=values["state"] in ("out", "both"),
            ragged=flag(values, "ragged"),
            workload=values["workload"],
            scale=1.0 / math.sqrt(values["h"]),
        )


def flops(problem: Problem, direction: str) -> int:
    """Floating-point operations of the recurrence, two per multiply-add; forms in chunks need more.

    A token and value head has three products with the state, ``S^T k``, ``k u^T`` and ``S^T q``, and each of these has
    two gradients.
    """
    p = problem
    forward = 6 * sum(p.lengths) * p.num_value_heads * p.head_dim * p.v_head_dim
    return forward if direction == "fwd" else 2 * forward


def bytes_moved(problem: Problem, direction: str) -> int:
    """The fewest bytes: each input read once, each output written once."""
    p = problem
    size = 4 if p.dtype == "float32" else 2
    tokens = sum(p.lengths)
    queries_and_keys = 2 * size * tokens * p.num_key_heads * p.head_dim
    values = size * tokens * p.num_value_heads * p.v_head_dim
    numbers = 4 * tokens * p.num_value_heads * (p.has_gate + p.has_beta)
    state = 4 * p.batch * p.num_value_heads * p.head_dim * p.v_head_dim
    if direction == "fwd":
        return queries_and_keys + 2 * values + numbers + state * (p.has_initial_state + p.has_final_state)
    return 2 * (queries_and_keys + numbers) + 3 * values + state * (2 * p.has_initial_state + p.has_final_state)
