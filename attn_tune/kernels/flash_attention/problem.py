"""The static half of one flash-attention call: shapes, dtypes and flags, and the op's signature.

Letters: ``B`` batch, ``T`` query length, ``S`` key/value length, ``N`` query heads, ``K`` key/value heads, ``H`` head
dim, ``V`` value head dim. Query row ``i`` and key column ``j`` are aligned at the bottom right: row ``i`` stands at
position ``i + S - T``.
"""

import math
from dataclasses import dataclass

from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Field, FieldKind, Signature

NAME = "flash_attention"
VERSION = 1
DTYPES = ("bfloat16", "float16", "float32")
LOGITS_DTYPES = ("float32", "bfloat16", "float16")
PRECISIONS = ("default", "high", "highest")

_C, _S = FieldKind.CATEGORICAL, FieldKind.SCALABLE

FIELDS = (
    Field(name="b", kind=_S, is_int=True, doc="batch"),
    Field(name="t", kind=_S, is_int=True, doc="query length"),
    Field(name="s", kind=_S, is_int=True, doc="key/value length"),
    Field(name="n", kind=_S, is_int=True, doc="query heads"),
    Field(name="k", kind=_S, is_int=True, doc="key/value heads"),
    Field(name="h", kind=_C, is_int=True, doc="head dim"),
    Field(name="v", kind=_C, is_int=True, doc="value head dim"),
    Field(name="dtype", kind=_C, is_int=False, doc="dtype of query, key, value"),
    Field(name="causal", kind=_C, is_int=True, default=0, doc="1: causal, bottom-right aligned"),
    Field(
        name="left", kind=_S, is_int=True, default=None, doc="window: positions visible to the left"
    ),
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
        doc="dense mask: which of b,n,t,s it spans",
    ),
    Field(name="bias", kind=_C, is_int=False, default=None, doc="bias: which of b,n,t,s it spans"),
    Field(name="seg", kind=_C, is_int=True, default=0, doc="1: segment ids"),
    Field(
        name="pos", kind=_C, is_int=True, default=0, doc="1: explicit positions (packed sequences)"
    ),
    Field(name="sinks", kind=_C, is_int=True, default=0, doc="1: one sink logit a head"),
    Field(name="cap", kind=_C, is_int=True, default=0, doc="1: tanh soft cap"),
    Field(name="drop", kind=_C, is_int=True, default=0, doc="1: dropout"),
    Field(name="logits", kind=_C, is_int=False, default="float32", doc="dtype of the logits"),
    Field(name="prec", kind=_C, is_int=False, default="default", doc="precision of the products"),
)

# What a signature does not say, for problems made from one.
CANONICAL_SOFT_CAP = 30.0
CANONICAL_DROPOUT = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One call, without its arrays.

    Attributes:
      window: ``(left, right)``: position ``p`` sees keys in ``[p - left, p + right]``; None is unbounded. A causal
        call has ``causal=True`` and ``right=None`` (the causal edge is the tighter one).
      mask_dims, bias_dims: one letter per axis of the 4-D array, ``"1"`` where it broadcasts: ``"b1ts"``, ``"1n1s"``.
      has_segments: segment ids for both sides are given; only equal ids attend.
      has_positions: explicit positions replace row and column numbers in causal and window masks.
      has_sinks: one extra logit per query head joins the softmax and is dropped from the output.
      soft_cap: logits become ``cap * tanh(logits / cap)`` before mask and bias.
      scale: multiplies the logits first.
      dropout_rate: probability of dropping a softmax weight.
      logits_dtype: the logits are rounded to it before the softmax.
      precision: of the matrix products, as in ``jax.lax.Precision``.
      has_lse_gradient: the returned lse takes part in the derivative; else ``delta`` is the row sum of ``dout * out``.
        Like ``scale``, not in the signature.

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
    has_segments: bool = False
    has_positions: bool = False
    has_sinks: bool = False
    soft_cap: float | None = None
    scale: float = 1.0
    dropout_rate: float = 0.0
    logits_dtype: str = "float32"
    precision: str = "default"
    has_lse_gradient: bool = False

    def __post_init__(self):
        for name in (
            "batch",
            "q_len",
            "kv_len",
            "num_q_heads",
            "num_kv_heads",
            "head_dim",
            "v_head_dim",
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"{name} must be a positive integer, got {value!r}")
        if self.num_q_heads % self.num_kv_heads:
            raise UsageError(
                f"num_q_heads={self.num_q_heads} must be a multiple of num_kv_heads={self.num_kv_heads}"
            )
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("logits_dtype", self.logits_dtype, LOGITS_DTYPES)
        _one_of("precision", self.precision, PRECISIONS)
        for bound in self.window:
            if bound is not None and bound < 0:
                raise UsageError(f"window bounds must be non-negative or None, got {self.window!r}")
        if self.causal and self.window[1] is not None:
            object.__setattr__(self, "window", (self.window[0], None))
        for name in ("mask_dims", "bias_dims"):
            dims = getattr(self, name)
            if dims is not None and (
                len(dims) != 4 or any(d not in (x, "1") for d, x in zip(dims, "bnts", strict=True))
            ):
                raise UsageError(f"{name} must have one of b1, n1, t1, s1 per axis, got {dims!r}")
            elif dims is not None:
                # An axis of size 1 broadcasts whatever it is called: one problem, one signature.
                sizes = (self.batch, self.num_q_heads, self.q_len, self.kv_len)
                kept = ("1" if n == 1 else d for d, n in zip(dims, sizes, strict=True))
                object.__setattr__(self, name, "".join(kept))
        if self.soft_cap is not None and not (math.isfinite(self.soft_cap) and self.soft_cap > 0):
            raise UsageError(f"soft_cap must be positive, got {self.soft_cap!r}")
        if not 0.0 <= self.dropout_rate < 1.0:
            raise UsageError(f"dropout_rate must be in [0, 1), got {self.dropout_rate!r}")

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
        left, right = self.bounds
        if left is None and right is None:
            return self.q_len * self.kv_len
        total = 0
        for row in range(self.q_len):
            position = row + self.offset
            first = 0 if left is None else max(0, position - left)
            last = self.kv_len - 1 if right is None else min(self.kv_len - 1, position + right)
            total += max(0, last - first + 1)
        return total

    @property
    def signature(self) -> Signature:
        """The problem's key."""
        return Signature.build(
            NAME,
            VERSION,
            FIELDS,
            {
                "b": self.batch,
                "t": self.q_len,
                "s": self.kv_len,
                "n": self.num_q_heads,
                "k": self.num_kv_heads,
                "h": self.head_dim,
                "v": self.v_head_dim,
                "dtype": self.dtype,
                "causal": int(self.causal),
                "left": self.window[0],
                "right": self.window[1],
                "mask": self.mask_dims,
                "bias": self.bias_dims,
                "seg": int(self.has_segments),
                "pos": int(self.has_positions),
                "sinks": int(self.has_sinks),
                "cap": int(self.soft_cap is not None),
                "drop": int(self.dropout_rate > 0),
                "logits": self.logits_dtype,
                "prec": self.precision,
            },
        )

    @classmethod
    def from_signature(cls, signature: Signature) -> "Problem":
        """A problem with this signature; scale is ``1/sqrt(H)``, cap and dropout take their canonical values."""
        v = {f.name: f.default for f in FIELDS} | signature.values
        return cls(
            batch=v["b"],  # type: ignore[arg-type]
            q_len=v["t"],  # type: ignore[arg-type]
            kv_len=v["s"],  # type: ignore[arg-type]
            num_q_heads=v["n"],  # type: ignore[arg-type]
            num_kv_heads=v["k"],  # type: ignore[arg-type]
            head_dim=v["h"],  # type: ignore[arg-type]
            v_head_dim=v["v"],  # type: ignore[arg-type]
            dtype=str(v["dtype"]),
            causal=bool(v["causal"]),
            window=(v["left"], v["right"]),  # type: ignore[arg-type]
            mask_dims=v["mask"],  # type: ignore[arg-type]
            bias_dims=v["bias"],  # type: ignore[arg-type]
            has_segments=bool(v["seg"]),
            has_positions=bool(v["pos"]),
            has_sinks=bool(v["sinks"]),
            soft_cap=CANONICAL_SOFT_CAP if v["cap"] else None,
            scale=1.0 / math.sqrt(v["h"]),  # type: ignore[arg-type]
            dropout_rate=CANONICAL_DROPOUT if v["drop"] else 0.0,
            logits_dtype=str(v["logits"]),
            precision=str(v["prec"]),
        )


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
    kv = (
        problem.batch
        * problem.kv_len
        * problem.num_kv_heads
        * (problem.head_dim + problem.v_head_dim)
    )
    lse = problem.batch * problem.q_len * problem.num_q_heads * 4
    if direction == "fwd":
        return size * (q + kv + out) + lse
    return size * (2 * q + 2 * kv + 2 * out) + lse


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{name} must be one of {', '.join(known)}, got {value!r}")
