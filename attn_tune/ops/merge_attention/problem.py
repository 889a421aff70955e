"""The static half of one merge: sizes, dtypes, and the op's signature."""

from dataclasses import dataclass

from attn_tune.ops.fields.attention import DTYPES, all_values, check_choice
from attn_tune.ops.fields.cache import SAME
from attn_tune.ops.fields.sizes import check_sizes
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Field, FieldKind, Signature

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"

NAME = "merge_attention"
VERSION = 1
MOST_PARTS = 4

_C, _S = FieldKind.CATEGORICAL, FieldKind.SCALABLE
FIELDS = (
    Field(name="r", kind=_S, is_int=True, doc="queries of all sequences together"),
    Field(name="n", kind=_S, is_int=True, doc="query heads"),
    Field(name="v", kind=_C, is_int=True, doc="value head dim"),
    Field(name="parts", kind=_C, is_int=True, default=2, doc="parts that are merged: `2`, `3`, `4`"),
    Field(name="dtype", kind=_C, is_int=False, doc="dtype of the parts"),
    Field(
        name="out",
        kind=_C,
        is_int=False,
        default=SAME,
        doc="dtype of the merged output: `same`, `float32`, `bfloat16`, `float16`",
    ),
)
_WORDS = {
    "num_rows": "r",
    "num_q_heads": "n",
    "v_head_dim": "v",
    "num_parts": "parts",
    "dtype": "dtype",
    "out_dtype": "out",
}
_SIZES = ("num_rows", "num_q_heads", "v_head_dim", "num_parts")


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One call, without its arrays.

    Attributes:
      num_rows: the queries of all sequences together.
      num_q_heads: the number of query heads.
      v_head_dim: the width of values and of outputs.
      num_parts: the number of parts.
      dtype: the dtype of the outputs of the parts; every lse is float32.
      out_dtype: the dtype of the merged output; ``same`` as the parts'.
      at_edges: the inputs have every kind of row: parts that saw nothing, with outputs that are not numbers, parts that
        weigh the same, and parts that outweigh all others. Not in the signature.

    Raises:
      UsageError: an impossible size or dtype; the message names it.
    """

    num_rows: int
    num_q_heads: int
    v_head_dim: int
    num_parts: int = 2
    dtype: str = "bfloat16"
    out_dtype: str = SAME
    at_edges: bool = False

    def __post_init__(self):
        check_sizes(self, {name: _WORDS[name] for name in _SIZES})
        if not 2 <= self.num_parts <= MOST_PARTS:
            raise UsageError(
                f"parts={self.num_parts} (num_parts) must be 2 to {MOST_PARTS}; merge what was merged with the others"
            )
        check_choice("dtype", self.dtype, DTYPES)
        check_choice("out", self.out_dtype, (SAME, *DTYPES), name="out_dtype")

    @property
    def merged_dtype(self) -> str:
        """The dtype of the merged output by name."""
        return self.dtype if self.out_dtype == SAME else self.out_dtype

    @property
    def signature(self) -> Signature:
        """The problem's key; an output of the parts' own dtype is always ``same``."""
        values = {word: getattr(self, name) for name, word in _WORDS.items()}
        return Signature.build(
            NAME, VERSION, FIELDS, values | {"out": SAME if self.merged_dtype == self.dtype else self.out_dtype}
        )

    @classmethod
    def from_signature(cls, signature: Signature) -> "Problem":
        """The problem with this signature."""
        values = all_values(signature, FIELDS)
        return cls(**{name: values[word] for name, word in _WORDS.items()})


def flops(problem: Problem, direction: str) -> int:
    """One multiply-add, two operations, for each element of each part."""
    p = problem
    return 2 * p.num_parts * p.num_rows * p.num_q_heads * p.v_head_dim


def bytes_moved(problem: Problem, direction: str) -> int:
    """The fewest bytes: outputs and lse of each part read once, those of the whole written once."""
    p = problem
    part, whole = (4 if name == "float32" else 2 for name in (p.dtype, p.merged_dtype))
    return p.num_rows * p.num_q_heads * (p.num_parts * (p.v_head_dim * part + 4) + p.v_head_dim * whole + 4)
