"""The static half of one call of linear attention: sizes, dtype, flags, and the signature.

Letters: ``B`` sequences, ``T`` tokens, ``N`` value heads, ``K`` query/key heads, ``H`` head dim of queries and keys,
``V`` head dim of values.
"""

import itertools
from dataclasses import dataclass
from typing import ClassVar, Self

from attn_tune.ops.contract import Workload, workload_field
from attn_tune.ops.fields.attention import DTYPES, all_values, check_choice, flag
from attn_tune.ops.fields.scales import default_scale
from attn_tune.ops.fields.sizes import check_sizes
from attn_tune.ops.workloads import LENGTHS, profile_lengths
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Field, FieldKind, Signature

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"

STATES = ("none", "in", "out", "both")
# The word of signatures for states in the slots of a pool, and the slots of inputs that no sequence has.
POOL, SPARE_SLOTS = "pool", 2
# Gates are never lower: here the factor ``exp(g)`` is exactly zero in float32, in base 2 too.
LOWEST_GATE = -128.0
# Of ragged inputs at the edges: tokens of no sequence, more than a tile of any kernel, or a few where these would be
# more than half of all; how many of them stand before the first sequence; and the lengths of sequences in turn, of
# which the last one has the rest. The first one has no token, and where tokens are few the last ones have none.
PADDING, FEW_PADDING, PADDING_BEFORE = 140, 3, 2
_EDGES = (0, 1, 17, 64, 1, 0, 33)
# Of ``mix``, one sequence in so many has all the tokens that are left when the others have one each.
_CHUNKS_EVERY = 8
WORKLOADS = (
    *LENGTHS,
    Workload(name="mix", summary="seven of eight sequences decode one token; the rest share the other tokens"),
)
# The tokens of a sequence in one step of decoding, of which some may be drafts.
MOST_DECODED = 8
# The kinds of gates by their word in signatures.
_GATES = {
    "none": "nothing is forgotten",
    "constant": "a gate for each value head, the same for all its tokens",
    "head": "a gate for each token and value head",
    "channel": "a gate for each token, value head and channel of its keys",
}

_C, _S = FieldKind.CATEGORICAL, FieldKind.SCALABLE
_SIZES = {
    "batch": "b",
    "length": "t",
    "num_value_heads": "n",
    "num_key_heads": "k",
    "head_dim": "h",
    "v_head_dim": "v",
}
BETA_FIELD = Field(
    name="beta", kind=_C, is_int=True, default=1, doc="`1`: a strength for each token and value head; `0`: all are 1"
)


def gate_field(gates: tuple[str, ...]) -> Field:
    """The field of a signature that says the kind of gates; the first one is the default."""
    doc = "; ".join(f"`{gate}`: {_GATES[gate]}" for gate in gates)
    return Field(name="gate", kind=_C, is_int=False, default=gates[0], doc=doc)


def fields_of(*own: Field) -> tuple[Field, ...]:
    """The fields of an op: those that all share, and its own."""
    return (
        Field(name="b", kind=_S, is_int=True, doc="sequences"),
        Field(name="t", kind=_S, is_int=True, doc="tokens of a sequence; of a ragged call those of all together"),
        Field(name="n", kind=_S, is_int=True, doc="value heads"),
        Field(name="k", kind=_S, is_int=True, doc="query/key heads"),
        Field(name="h", kind=_C, is_int=True, doc="head dim of queries and keys"),
        Field(name="v", kind=_C, is_int=True, doc="head dim of values"),
        Field(name="dtype", kind=_C, is_int=False, doc="dtype of queries, keys and values"),
        *own,
        Field(
            name="state",
            kind=_C,
            is_int=False,
            default="none",
            doc="states of sequences: `in`: given at the start; `out`: returned at the end; `both`; `none`; "
            "`pool`: both, in slots of a pool that is updated in place (forward only)",
        ),
        Field(name="ragged", kind=_C, is_int=True, default=0, doc="`1`: sequences of different lengths, end to end"),
        workload_field(WORKLOADS),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RecurrentProblem:
    """One call, without its arrays. An op's own problem says which rule it has.

    Attributes:
      NAME, VERSION: the op's name and the version of its contract.
      FIELDS: the fields of its signature.
      GATES: the kinds of gates that it knows; without a field ``gate`` it has one.
      has_delta: an update is the difference of the value and what the state knows under the key (the delta rule);
        otherwise it is the value.
      batch: the number of sequences.
      length: the tokens of each sequence; of a ragged call those of all together, and padding.
      num_value_heads: the number of heads of values, gates, strengths and states; a multiple of ``num_key_heads``.
      num_key_heads: the number of heads of queries and keys.
      head_dim: the width of queries and keys: the rows of a state.
      v_head_dim: the width of values: the columns of a state.
      dtype: the dtype of queries, keys, values and outputs; gates, strengths and states are float32.
      gate: the factors by which a token multiplies the state: ``none``; ``constant``: one of each value head; ``head``:
        one of each token and value head; ``channel``: one of each token, value head and row of the state.
      has_beta: strengths of the update are given; otherwise all are one. Of the delta rule alone.
      has_initial_state: the state before the first token of each sequence is given; otherwise it is zero.
      has_final_state: the state after the last token of each sequence is an output.
      has_pool: the states are in the slots of a pool, given and returned; it has no gradients.
      ragged: the sequences lie end to end in a batch of one, and an array says where each begins.
      workload: the profile of lengths of ragged inputs.
      scale: multiplies the output. Not in the signature.
      at_edges: the inputs have gates at both ends of their range, strengths (of the delta rule) up to 2, repeated keys,
        queries and keys of several lengths and, if ragged, sequences without a token and tokens of no sequence. Not in
        the signature.

    Raises:
      UsageError: an impossible size or flag; the message names it.
    """

    NAME: ClassVar[str]
    VERSION: ClassVar[int]
    FIELDS: ClassVar[tuple[Field, ...]]
    GATES: ClassVar[tuple[str, ...]]
    has_delta: ClassVar[bool]

    batch: int
    length: int
    num_value_heads: int
    num_key_heads: int
    head_dim: int
    v_head_dim: int
    dtype: str = "bfloat16"
    gate: str = "head"
    has_beta: bool = False
    has_initial_state: bool = False
    has_final_state: bool = False
    has_pool: bool = False
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
        check_choice("gate", self.gate, self.GATES)
        check_choice("workload", self.workload, tuple(w.name for w in WORKLOADS))
        if self.workload != "eq" and not self.ragged:
            raise UsageError(f"workload={self.workload} is one of ragged sequences; it needs ragged=1")
        if self.has_pool and not (self.has_initial_state and self.has_final_state):
            raise UsageError("state=pool (has_pool): its states are given and returned")
        if self.has_beta and not self.has_delta:
            raise UsageError(f"beta=1 (has_beta) is of ops with the delta rule; {self.NAME} has none")

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
    def gate_shape(self) -> tuple[int, ...] | None:
        """The shape of the gates: ``[N]``, ``[R, T, N]`` or ``[R, T, N, H]``; None without."""
        shapes = {
            "constant": (self.num_value_heads,),
            "head": (*self.rows, self.num_value_heads),
            "channel": (*self.rows, self.num_value_heads, self.head_dim),
        }
        return shapes.get(self.gate)

    @property
    def state_shape(self) -> tuple[int, int, int, int]:
        """The shape of the states ``[B, N, H, V]``; of a pool as inputs have it that of all slots."""
        states = self.batch + (SPARE_SLOTS if self.has_pool else 0)
        return (states, self.num_value_heads, self.head_dim, self.v_head_dim)

    @property
    def padding(self) -> int:
        """The tokens of the inputs that belong to no sequence: at the edges of a ragged call at most half."""
        if not (self.ragged and self.at_edges):
            return 0
        half = self.length // 2
        return PADDING if half >= PADDING else min(half, FEW_PADDING)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The tokens of each of the inputs' sequences."""
        if not self.ragged:
            return (self.length,) * self.batch
        if self.at_edges:
            found: list[int] = []
            left = self.length - self.padding
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
    def is_decoding(self) -> bool:
        """Whether states come out for a next call, and no sequence has more tokens than a step of decoding."""
        return self.has_final_state and max(self.lengths) <= MOST_DECODED

    @property
    def signature(self) -> Signature:
        """The problem's key."""
        values = {word: getattr(self, name) for name, word in _SIZES.items()}
        values |= {
            "dtype": self.dtype,
            "gate": self.gate,
            "beta": int(self.has_beta),
            "state": POOL if self.has_pool else STATES[self.has_initial_state + 2 * self.has_final_state],
            "ragged": int(self.ragged),
            "workload": self.workload,
        }
        own = {field.name: values[field.name] for field in self.FIELDS}
        return Signature.build(self.NAME, self.VERSION, self.FIELDS, own)

    @classmethod
    def from_signature(cls, signature: Signature) -> Self:
        """The problem with this signature; its scale is ``1/sqrt(H)``."""
        values = all_values(signature, cls.FIELDS)
        check_choice("state", state := values["state"], (*STATES, POOL))
        return cls(
            **{name: values[word] for name, word in _SIZES.items()},
            dtype=values["dtype"],
            gate=values.get("gate", cls.GATES[0]),
            has_beta="beta" in values and flag(values, "beta"),
            has_initial_state=state in ("in", "both", POOL),
            has_final_state=state in ("out", "both", POOL),
            has_pool=state == POOL,
            ragged=flag(values, "ragged"),
            workload=values["workload"],
            scale=default_scale(values["h"]),
        )
