"""The static half of one flash-attention call: shapes, dtypes and flags, and the op's signature."""

import functools
from dataclasses import dataclass

from attn_tune.ops.fields.attention import (
    MASK_FIELDS,
    SIZE_FIELDS,
    SOFTMAX_FIELDS,
    AttentionProblem,
    all_values,
    check_choice,
    flag,
    shared_arguments,
    shared_values,
)
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Field, FieldKind, Signature

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"

NAME = "flash_attention"
VERSION = 1
LOGITS_DTYPES = ("float32", "bfloat16", "float16")
PRECISIONS = ("default", "high", "highest")

_C = FieldKind.CATEGORICAL

FIELDS = (
    *SIZE_FIELDS,
    Field(name="dtype", kind=_C, is_int=False, doc="dtype of query, key, value"),
    *MASK_FIELDS,
    Field(name="seg", kind=_C, is_int=True, default=0, doc="`1`: segment ids"),
    Field(
        name="len",
        kind=_C,
        is_int=True,
        default=0,
        doc="`1`: they are padding behind the keys, of known lengths",
    ),
    Field(
        name="ids",
        kind=FieldKind.RESOURCE,
        is_int=True,
        default=1,
        doc="`0`: they are those of sequences end to end, of known offsets; rows of ids alone answer too",
    ),
    Field(name="pos", kind=_C, is_int=True, default=0, doc="`1`: explicit positions (packed sequences)"),
    *SOFTMAX_FIELDS,
    Field(
        name="logits",
        kind=_C,
        is_int=False,
        default="float32",
        doc="dtype of the logits: `float32`, `bfloat16`, `float16`",
    ),
    Field(
        name="prec",
        kind=_C,
        is_int=False,
        default="default",
        doc="precision of the products: `default`, `high`, `highest`",
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem(AttentionProblem):
    """One call, without its arrays. A causal call has ``right=None``: the causal edge is the tighter one.

    Attributes:
      has_segments: segment ids for both sides are given; only equal ids attend.
      has_lengths: all that the segment ids say is how many keys of each batch entry count, and that is given too.
      has_offsets: all that segment ids and positions say is where sequences end that lie end to end in a batch of one,
        and that is given too.
      has_positions: explicit positions replace row and column numbers in causal and window masks.
      logits_dtype: the logits are rounded to it before the softmax.
      precision: of the matrix products, as in ``jax.lax.Precision``.
      has_lse_gradient: the returned lse takes part in the derivative; else ``delta`` is the row sum of ``dout * out``.
        Like ``scale``, not in the signature.
      needs_lse: someone reads the forward's lse; otherwise a kernel may leave it out. Not in the signature
        either: what is measured and chosen is the forward that training calls.

    Raises:
      UsageError: an impossible shape or flag; the message names it.
    """

    has_segments: bool = False
    has_lengths: bool = False
    has_offsets: bool = False
    has_positions: bool = False
    logits_dtype: str = "float32"
    precision: str = "default"
    has_lse_gradient: bool = False
    needs_lse: bool = True

    def __post_init__(self):
        AttentionProblem.__post_init__(self)
        check_choice("logits", self.logits_dtype, LOGITS_DTYPES, name="logits_dtype")
        check_choice("prec", self.precision, PRECISIONS, name="precision")
        if self.has_lengths and not self.has_segments:
            raise UsageError("lengths (len=1) come with the segment ids (seg=1) that say the same")
        if self.has_offsets:
            self._check_offsets()
        self._drop_what_hides_nothing()
        for name in ("mask_dims", "bias_dims"):
            dims = getattr(self, name)
            if dims is not None:
                # An axis of size 1 broadcasts under every name: one problem, one signature.
                sizes = (self.batch, self.num_q_heads, self.q_len, self.kv_len)
                kept = ("1" if n == 1 else d for d, n in zip(dims, sizes, strict=True))
                object.__setattr__(self, name, "".join(kept))

    def _check_offsets(self) -> None:
        given = (("b", self.batch, 1), ("seg", int(self.has_segments), 1), ("len", int(self.has_lengths), 0))
        if wrong := " ".join(f"{word}={value}" for word, value, wanted in given if value != wanted):
            raise UsageError(
                f"offsets (ids=0) are those of one row of segments (b=1 seg=1) without lengths, got {wrong}; leave ids "
                "out where segment ids say it"
            )

    def _drop_what_hides_nothing(self) -> None:
        """Leave out bounds that no pair exceeds: one problem, one signature, and no comparisons in its kernel."""
        left, right = self.bounds
        if not self.has_positions:
            # The last row has the last key's position, and the first one is T - 1 before it.
            left = None if left is not None and left >= self.kv_len - 1 else left
            right = None if right is not None and right >= self.q_len - 1 else right
        object.__setattr__(self, "causal", self.causal and right == 0)
        object.__setattr__(self, "window", (left, None if self.causal else right))

    @property
    def group_size(self) -> int:
        """Query heads per key/value head."""
        return self.num_q_heads // self.num_kv_heads

    @property
    def offset(self) -> int:
        """Position of query row 0: ``S - T`` (bottom-right alignment)."""
        return self.kv_len - self.q_len

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """``(left, right)`` with causal folded in: ``right = 0``."""
        return (self.window[0], 0 if self.causal else self.window[1])

    @property
    def visible_pairs(self) -> int:
        """Pairs (row, column) that causal and window leave visible, per batch and head."""
        return _visible_pairs(self.q_len, self.kv_len, *self.bounds)

    @property
    def signature(self) -> Signature:
        """The problem's key."""
        own = {
            "seg": int(self.has_segments),
            "len": int(self.has_lengths),
            "ids": int(not self.has_offsets),
            "pos": int(self.has_positions),
            "logits": self.logits_dtype,
            "prec": self.precision,
        }
        return Signature.build(NAME, VERSION, FIELDS, shared_values(self) | own)

    @classmethod
    def from_signature(cls, signature: Signature) -> "Problem":
        """A problem with this signature; scale is ``1/sqrt(H)``, cap and dropout take their canonical values."""
        values = all_values(signature, FIELDS)
        return cls(
            **shared_arguments(values),
            has_segments=flag(values, "seg"),
            has_lengths=flag(values, "len"),
            has_offsets=not flag(values, "ids"),
            has_positions=flag(values, "pos"),
            logits_dtype=values["logits"],
            precision=values["prec"],
        )


@functools.lru_cache(maxsize=4096)
def _visible_pairs(q_len: int, kv_len: int, left: int | None, right: int | None) -> int:
    # Remembered: limits and priorities of several kernels ask for it in one lookup, and it takes a step a row.
    if left is None and right is None:
        return q_len * kv_len
    total = 0
    for position in range(kv_len - q_len, kv_len):
        first = 0 if left is None else max(0, position - left)
        last = kv_len - 1 if right is None else min(kv_len - 1, position + right)
        total += max(0, last - first + 1)
    return total


def flops(problem: Problem, direction: str) -> int:
    """Floating-point operations of the visible pairs, two per multiply-add.

    Forward: the products QK^T and PV. Backward: 2.5 times as many (five products against two), the convention of
    FlashAttention-2 (arXiv 2307.08691, section 4.1).
    """
    pairs = problem.batch * problem.num_q_heads * problem.visible_pairs
    forward = 2 * pairs * (problem.head_dim + problem.v_head_dim)
    return forward if direction == "fwd" else forward * 5 // 2


def bytes_moved(problem: Problem, direction: str) -> int:
    """The fewest bytes: each input read once, each output written once (bias and mask left out)."""
    size = 4 if problem.dtype == "float32" else 2
    q = problem.batch * problem.q_len * problem.num_q_heads * problem.head_dim
    out = problem.batch * problem.q_len * problem.num_q_heads * problem.v_head_dim
    kv = problem.batch * problem.kv_len * problem.num_kv_heads * (problem.head_dim + problem.v_head_dim)
    lse = problem.batch * problem.q_len * problem.num_q_heads * 4
    if direction == "fwd":
        return size * (q + kv + out) + lse
    return size * (2 * q + 2 * kv + 2 * out) + lse
