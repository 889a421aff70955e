"""The static half of one dense ``attention`` call, and the op's signature."""

from dataclasses import dataclass

from attn_tune.ops.fields.attention import (
    DTYPES,
    MASK_FIELDS,
    SIZE_FIELDS,
    SOFTMAX_FIELDS,
    AttentionProblem,
    all_values,
    check_choice,
    shared_arguments,
    shared_values,
)
from attn_tune.schema.signature import Field, FieldKind, Signature

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"

NAME = "attention"
VERSION = 1

_C = FieldKind.CATEGORICAL

FIELDS = (
    *SIZE_FIELDS,
    Field(name="dtype", kind=_C, is_int=False, doc="dtype of the products and results"),
    *MASK_FIELDS,
    *SOFTMAX_FIELDS,
    Field(
        name="softmax",
        kind=_C,
        is_int=False,
        default="float32",
        doc="dtype of the softmax: `float32`, `bfloat16`, `float16`",
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem(AttentionProblem):
    """One call, without its arrays. ``dtype`` is that of products and results, for any input dtype.

    Attributes:
      softmax_dtype: the name of the dtype in which the softmax is computed.

    Raises:
      UsageError: an impossible shape or flag; the message names it.
    """

    softmax_dtype: str = "float32"

    def __post_init__(self):
        AttentionProblem.__post_init__(self)
        check_choice("softmax", self.softmax_dtype, DTYPES, name="softmax_dtype")

    @property
    def signature(self) -> Signature:
        """The problem's key."""
        values = shared_values(self) | {"softmax": self.softmax_dtype}
        return Signature.build(NAME, VERSION, FIELDS, values)

    @classmethod
    def from_signature(cls, signature: Signature) -> "Problem":
        """A problem with this signature; scale is ``1/sqrt(H)``, cap and dropout take their canonical values."""
        values = all_values(signature, FIELDS)
        return cls(**shared_arguments(values), softmax_dtype=values["softmax"])


def flops(problem: Problem, direction: str) -> int:
    """Two products over every pair, masked or not; the backward has four."""
    pairs = problem.batch * problem.num_q_heads * problem.q_len * problem.kv_len
    forward = 2 * pairs * (problem.head_dim + problem.v_head_dim)
    return forward if direction == "fwd" else 2 * forward


def bytes_moved(problem: Problem, direction: str) -> int:
    """Inputs and outputs once; the weights are an output, and an input of the backward's cotangents."""
    size = 4 if problem.dtype == "float32" else 2
    per_row = problem.head_dim + problem.v_head_dim
    q_and_out = problem.batch * problem.q_len * problem.num_q_heads * per_row
    kv = problem.batch * problem.kv_len * problem.num_kv_heads * per_row
    weights = problem.batch * problem.num_q_heads * problem.q_len * problem.kv_len
    once = size * (q_and_out + kv + weights)
    return once if direction == "fwd" else 2 * once
