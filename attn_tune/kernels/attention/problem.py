"""The static half of one dense ``attention`` call, and the op's signature."""

from dataclasses import dataclass

from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Field, FieldKind, Signature

NAME = "attention"
VERSION = 1
DTYPES = ("bfloat16", "float16", "float32")
CANONICAL_SOFT_CAP = 30.0
CANONICAL_DROPOUT = 0.1

_C, _S = FieldKind.CATEGORICAL, FieldKind.SCALABLE

FIELDS = (
    Field(name="b", kind=_S, is_int=True, doc="batch"),
    Field(name="t", kind=_S, is_int=True, doc="query length"),
    Field(name="s", kind=_S, is_int=True, doc="key/value length"),
    Field(name="n", kind=_S, is_int=True, doc="query heads"),
    Field(name="k", kind=_S, is_int=True, doc="key/value heads"),
    Field(name="h", kind=_C, is_int=True, doc="head dim"),
    Field(name="v", kind=_C, is_int=True, doc="value head dim"),
    Field(name="dtype", kind=_C, is_int=False, doc="dtype of the products and results"),
    Field(name="causal", kind=_C, is_int=True, default=0, doc="1: causal, bottom-right aligned"),
    Field(name="left", kind=_S, is_int=True, default=None, doc="window to the left"),
    Field(name="right", kind=_S, is_int=True, default=None, doc="window to the right"),
    Field(name="mask", kind=_C, is_int=False, default=None, doc="mask: which of b,n,t,s it spans"),
    Field(name="bias", kind=_C, is_int=False, default=None, doc="bias: which of b,n,t,s it spans"),
    Field(name="sinks", kind=_C, is_int=True, default=0, doc="1: one sink logit a head"),
    Field(name="cap", kind=_C, is_int=True, default=0, doc="1: tanh soft cap"),
    Field(name="drop", kind=_C, is_int=True, default=0, doc="1: dropout"),
    Field(name="softmax", kind=_C, is_int=False, default="float32", doc="dtype of the softmax"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One call, without its arrays. ``dtype`` is that of products and results, whatever the inputs have.

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
    softmax_dtype: str = "float32"
    causal: bool = False
    window: tuple[int | None, int | None] = (None, None)
    mask_dims: str | None = None
    bias_dims: str | None = None
    has_sinks: bool = False
    soft_cap: float | None = None
    scale: float = 1.0
    dropout_rate: float = 0.0

    def __post_init__(self):
        sizes = (
            self.batch,
            self.q_len,
            self.kv_len,
            self.num_kv_heads,
            self.head_dim,
            self.v_head_dim,
        )
        if min(sizes) < 1 or self.num_q_heads < 1 or self.num_q_heads % self.num_kv_heads:
            raise UsageError(
                f"sizes must be positive and query heads a multiple of key/value heads, got {self}"
            )
        for name, value in (("dtype", self.dtype), ("softmax_dtype", self.softmax_dtype)):
            if value not in DTYPES:
                raise UsageError(f"{name} must be one of {', '.join(DTYPES)}, got {value!r}")

    @property
    def signature(self) -> Signature:
        """The problem's key."""
        values = {
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
            "sinks": int(self.has_sinks),
            "cap": int(self.soft_cap is not None),
            "drop": int(self.dropout_rate > 0),
            "softmax": self.softmax_dtype,
        }
        return Signature.build(NAME, VERSION, FIELDS, values)

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
            softmax_dtype=str(v["softmax"]),
            causal=bool(v["causal"]),
            window=(v["left"], v["right"]),  # type: ignore[arg-type]
            mask_dims=v["mask"],  # type: ignore[arg-type]
            bias_dims=v["bias"],  # type: ignore[arg-type]
            has_sinks=bool(v["sinks"]),
            soft_cap=CANONICAL_SOFT_CAP if v["cap"] else None,
            scale=v["h"] ** -0.5,  # type: ignore[operator]
            dropout_rate=CANONICAL_DROPOUT if v["drop"] else 0.0,
        )


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
