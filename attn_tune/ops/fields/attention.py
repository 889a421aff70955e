"""Fields that the problems of all attention ops share (sizes, masks, softmax), and their part of a signature.

Letters: ``B`` batch, ``T`` query length, ``S`` key/value length, ``N`` query heads, ``K`` key/value heads, ``H`` head
dim, ``V`` value head dim. Query row ``i`` and key column ``j`` are aligned at the bottom right: row ``i`` stands at
position ``i + S - T``.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from attn_tune.ops.contract import Axis, Operand, Output, OutputKind
from attn_tune.ops.fields.scales import default_scale
from attn_tune.ops.fields.sizes import check_sizes
from attn_tune.schema.errors import UsageError, near_names
from attn_tune.schema.signature import Field, FieldKind, Signature, Value

DTYPES = ("bfloat16", "float16", "float32")
SIZES = ("batch", "q_len", "kv_len", "num_q_heads", "num_kv_heads", "head_dim", "v_head_dim")

# What a signature does not say, for problems made from one.
CANONICAL_SOFT_CAP = 30.0
CANONICAL_DROPOUT = 0.1

_C, _S = FieldKind.CATEGORICAL, FieldKind.SCALABLE

SIZE_FIELDS = (
    Field(name="b", kind=_S, is_int=True, doc="batch"),
    Field(name="t", kind=_S, is_int=True, doc="query length"),
    # It decides where causal and window masks lie, and whether there are rows that see nothing.
    Field(name="s", kind=_S, is_int=True, doc="key/value length", order_with="t"),
    Field(name="n", kind=_S, is_int=True, doc="query heads"),
    Field(name="k", kind=_S, is_int=True, doc="key/value heads"),
    Field(name="h", kind=_C, is_int=True, doc="head dim"),
    Field(name="v", kind=_C, is_int=True, doc="value head dim"),
)
# Lengths in grids: ``4x4k`` is batch 4, query and key length 4096; ``4x1x4k`` one query.
AXES = (
    Axis(field="b", is_length=False),
    Axis(field="t"),
    Axis(field="s", same_as="t"),
)
# Messages say the word of signatures and grids, with the attribute's name behind it.
_WORDS: dict[str, str] = {
    **{size: field.name for size, field in zip(SIZES, SIZE_FIELDS, strict=True)},
    "mask_dims": "mask",
    "bias_dims": "bias",
}

MASK_FIELDS = (
    Field(name="causal", kind=_C, is_int=True, default=0, doc="`1`: causal, bottom-right aligned"),
    Field(name="left", kind=_S, is_int=True, default=None, doc="window: positions visible to the left"),
    Field(
        name="right",
        kind=_S,
        is_int=True,
        default=None,
        doc="window: positions visible to the right",
    ),
    Field(
        name="mask",
        kind=_C,
        is_int=False,
        default=None,
        doc="dense mask: `bnts`, with 1 for an axis that it does not span",
    ),
    Field(
        name="bias", kind=_C, is_int=False, default=None, doc="bias: `bnts`, with 1 for an axis that it does not span"
    ),
)
SOFTMAX_FIELDS = (
    Field(name="sinks", kind=_C, is_int=True, default=0, doc="`1`: one sink logit a head"),
    Field(name="cap", kind=_C, is_int=True, default=0, doc="`1`: tanh soft cap"),
    Field(name="drop", kind=_C, is_int=True, default=0, doc="`1`: dropout"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionProblem:
    """The part of a call, without its arrays, that every attention op has.

    Attributes:
      batch: the number of sequences.
      q_len, kv_len: the numbers of queries and of keys of a sequence.
      num_q_heads, num_kv_heads: the numbers of heads; the former is a multiple of the latter.
      head_dim: the width of queries and keys.
      v_head_dim: the width of values and of the output.
      dtype: the name of the working dtype.
      causal: a query sees no key after its own position; the last query stands at the last key.
      window: ``(left, right)``: position ``p`` sees keys in ``[p - left, p + right]``; None is unbounded.
      mask_dims: one letter per axis of the 4-D mask, ``"1"`` where it broadcasts: ``"b1ts"``, ``"1n1s"``.
      bias_dims: the same for the 4-D bias.
      has_sinks: one extra logit per query head joins the softmax and is dropped from the output.
      soft_cap: logits become ``cap * tanh(logits / cap)`` before mask and bias.
      scale: multiplies the logits first.
      dropout_rate: probability of dropping a softmax weight.

    Raises:
      UsageError: an impossible shape or flag; the message names it.
    """

    batch: int
    q_len: int
    kv_len: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    dtype: str = "bfloat16"
    causal: bool = False
    window: tuple[int | None, int | None] = (None, None)
    mask_dims: str | None = None
    bias_dims: str | None = None
    has_sinks: bool = False
    soft_cap: float | None = None
    scale: float = 1.0
    dropout_rate: float = 0.0

    def __post_init__(self):
        check_sizes(self, {name: _WORDS[name] for name in SIZES})
        if self.num_q_heads % self.num_kv_heads:
            raise UsageError(
                f"n={self.num_q_heads} (num_q_heads) must be a multiple of k={self.num_kv_heads} (num_kv_heads)"
            )
        check_choice("dtype", self.dtype, DTYPES)
        for word, bound in zip(("left", "right"), self.window, strict=True):
            if bound is not None and bound < 0:
                raise UsageError(f"{word}={bound!r} (window) must be non-negative, or left out")
        for name in ("mask_dims", "bias_dims"):
            dims = getattr(self, name)
            if dims is not None and (
                len(dims) != 4 or any(d not in (x, "1") for d, x in zip(dims, "bnts", strict=True))
            ):
                raise UsageError(f"{_WORDS[name]}={dims!r} ({name}) must have one of b1, n1, t1, s1 per axis")
        if self.soft_cap is not None and not (math.isfinite(self.soft_cap) and self.soft_cap > 0):
            raise UsageError(f"logits_soft_cap must be positive, got {self.soft_cap!r}")
        if not 0.0 <= self.dropout_rate < 1.0:
            raise UsageError(f"dropout_rate must be in [0, 1), got {self.dropout_rate!r}")


def shared_values(problem: AttentionProblem) -> dict[str, Value]:
    """The values of the shared fields and of ``dtype``, for the problem's signature."""
    return {
        "b": problem.batch,
        "t": problem.q_len,
        "s": problem.kv_len,
        "n": problem.num_q_heads,
        "k": problem.num_kv_heads,
        "h": problem.head_dim,
        "v": problem.v_head_dim,
        "dtype": problem.dtype,
        "causal": int(problem.causal),
        "left": problem.window[0],
        "right": problem.window[1],
        "mask": problem.mask_dims,
        "bias": problem.bias_dims,
        "sinks": int(problem.has_sinks),
        "cap": int(problem.soft_cap is not None),
        "drop": int(problem.dropout_rate > 0),
    }


def all_values(signature: Signature, fields: Iterable[Field]) -> dict[str, Any]:
    """Every field's value, those at their defaults among them."""
    return {field.name: field.default for field in fields} | signature.values


def shared_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of ``shared_values``; scale is ``1/sqrt(H)``, cap and dropout take their canonical values.

    Raises:
      UsageError: a flag is neither 0 nor 1.
    """
    return {
        "batch": values["b"],
        "q_len": values["t"],
        "kv_len": values["s"],
        "num_q_heads": values["n"],
        "num_kv_heads": values["k"],
        "head_dim": values["h"],
        "v_head_dim": values["v"],
        "dtype": values["dtype"],
        "causal": flag(values, "causal"),
        "window": (values["left"], values["right"]),
        "mask_dims": values["mask"],
        "bias_dims": values["bias"],
        "has_sinks": flag(values, "sinks"),
        "soft_cap": CANONICAL_SOFT_CAP if flag(values, "cap") else None,
        "scale": default_scale(values["h"]),
        "dropout_rate": CANONICAL_DROPOUT if flag(values, "drop") else 0.0,
    }


def flag(values: Mapping[str, Any], word: str) -> bool:
    """The value of a signature's field that is 1 or 0.

    Raises:
      UsageError: it is something else.
    """
    if values[word] not in (0, 1):
        raise UsageError(f"{word}={values[word]!r} must be 0 or 1")
    return bool(values[word])


def check_choice(word: str, value: str, known: tuple[str, ...], *, name: str = "") -> None:
    """Checks a value of the signature's field ``word``; ``name`` is the problem's attribute, if it is another word.

    Raises:
      UsageError: ``value`` is not known; the message has the nearest one.
    """
    if value not in known:
        near = near_names(str(value), known, most=1)
        raise UsageError(
            f"{word}={value!r}{f' ({name})' if name else ''} must be one of {', '.join(known)}"
            f"{f'; {near}' if near else ''}"
        )


def qkv_operands(problem: AttentionProblem) -> tuple[Operand, ...]:
    """Queries, keys, values and the bias, in BTNH: the differentiable operands that all attention ops share."""
    p = problem
    shapes: dict[str, tuple[int, ...]] = {
        "q": (p.batch, p.q_len, p.num_q_heads, p.head_dim),
        "k": (p.batch, p.kv_len, p.num_kv_heads, p.head_dim),
        "v": (p.batch, p.kv_len, p.num_kv_heads, p.v_head_dim),
    }
    if p.bias_dims is not None:
        sizes = {"b": p.batch, "n": p.num_q_heads, "t": p.q_len, "s": p.kv_len, "1": 1}
        shapes["bias"] = tuple(sizes[d] for d in p.bias_dims)
    return tuple(Operand(name=name, shape=shape, dtype=p.dtype, differentiable=True) for name, shape in shapes.items())


def qkv_gradients(problem: AttentionProblem) -> tuple[Output, ...]:
    """The gradients of ``qkv_operands``; the gradient of ``x`` is called ``dx``."""
    return tuple(
        Output(name=f"d{operand.name}", kind=OutputKind.GRADIENT, of=operand.name) for operand in qkv_operands(problem)
    )
