"""The static options of a call in the spellings that users have, turned into the problem's."""

import math
import operator
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from attn_tune.ops.fields.arguments import static_float
from attn_tune.ops.flash_attention.problem import LOGITS_DTYPES
from attn_tune.schema.errors import UsageError, shown

_PRECISIONS = {
    jax.lax.Precision.DEFAULT: "default",
    jax.lax.Precision.HIGH: "high",
    jax.lax.Precision.HIGHEST: "highest",
}
# The integer codes of ejkernel's flash attention, so that its callers can switch.
_PRECISION_CODES = {0: "default", 1: "highest", 2: "high"}
_DTYPE_CODES = {0: "float16", 1: "bfloat16", 2: "float32"}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The numbers and dtypes that a call fixes at trace time, besides shapes and masks.

    Attributes:
      scale: multiplies the logits first.
      soft_cap: logits become ``cap * tanh(logits / cap)``; None without.
      dropout_rate: the probability of dropping a softmax weight.
      logits_dtype: the name of the dtype of the logits.
      precision: the name of the precision of products.
    """

    scale: float
    soft_cap: float | None
    dropout_rate: float
    logits_dtype: str
    precision: str


def options_of(
    *,
    head_dim: int,
    softmax_scale: Any,
    logits_soft_cap: Any,
    dropout_prob: Any,
    logits_dtype: Any,
    precision: Any,
) -> Options:
    """Checked options; the scale defaults to ``1/sqrt(H)``.

    Raises:
      UsageError: an option is malformed, out of range, or traced.
    """
    scale = 1.0 / math.sqrt(head_dim)
    if softmax_scale is not None:
        scale = static_float("softmax_scale", softmax_scale)
        if not math.isfinite(scale):
            raise UsageError(f"softmax_scale must be finite, got {shown(scale)}")
    soft_cap = None
    if logits_soft_cap is not None:
        soft_cap = static_float("logits_soft_cap", logits_soft_cap)
        if not (math.isfinite(soft_cap) and soft_cap > 0):
            raise UsageError(f"logits_soft_cap must be positive or None, got {shown(soft_cap)}")
    rate = static_float("dropout_prob", dropout_prob)
    if not 0.0 <= rate < 1.0:
        raise UsageError(f"dropout_prob must be in [0, 1), got {shown(rate)}")
    return Options(
        scale=scale,
        soft_cap=soft_cap,
        dropout_rate=rate,
        logits_dtype=logits_dtype_name(logits_dtype),
        precision=precision_name(precision),
    )


def precision_name(value: Any) -> str:
    """``default``, ``high`` or ``highest`` from a name, a ``jax.lax.Precision``, a code, or a pair of equal ones.

    Raises:
      UsageError: none of these.
    """
    pair = cast("list[Any]", value) if isinstance(value, tuple | list) else []
    if len(pair) == 2 and pair[0] == pair[1]:
        value = pair[0]
    if value is None:
        return "default"
    if isinstance(value, int) and not isinstance(value, bool) and value in _PRECISION_CODES:
        return _PRECISION_CODES[value]
    if isinstance(value, str) and value.lower() in _PRECISIONS.values():
        return value.lower()
    if isinstance(value, jax.lax.Precision) and value in _PRECISIONS:
        return _PRECISIONS[value]
    raise UsageError(f"precision must be 'default', 'high', 'highest' or a jax.lax.Precision, got {shown(value)}")


def logits_dtype_name(value: Any) -> str:
    """``float32``, ``bfloat16`` or ``float16`` from anything that names a dtype, or a code.

    Raises:
      UsageError: another dtype, or no dtype at all.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value in _DTYPE_CODES:
        return _DTYPE_CODES[value]
    try:
        name = "float32" if value is None else np.dtype(value).name  # type: ignore[arg-type]
    except TypeError:
        name = ""
    if name not in LOGITS_DTYPES:
        raise UsageError(f"logits_dtype must be one of {', '.join(LOGITS_DTYPES)}, got {shown(value)}")
    return name


def dropout_words(seed: Any) -> jax.Array:
    """``uint32[3]``: the seed, and zeros for the first batch index and query head of this shard.

    ``seed`` is an integer or an integer array of one element (traced is fine, None is 0), or a ``jax.random.key``.

    Raises:
      UsageError: anything else.
    """
    seed = 0 if seed is None else seed
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        if seed.shape != ():
            raise UsageError(f"dropout_seed must be one key, got keys of shape {seed.shape}")
        word = jax.random.bits(seed, dtype=jnp.uint32)
    elif not hasattr(seed, "dtype"):
        try:
            word = jnp.asarray(np.uint32(operator.index(seed) & 0xFFFFFFFF))
        except TypeError:
            raise UsageError(f"dropout_seed must be an integer or a jax.random.key, got {shown(seed)}") from None
    else:
        if not jnp.issubdtype(seed.dtype, jnp.integer) or seed.size != 1:
            raise UsageError(
                f"dropout_seed must be one integer or a jax.random.key, got {seed.dtype}{list(seed.shape)}"
            )
        word = jnp.asarray(seed).reshape(()).astype(jnp.uint32)
    return jnp.stack([word, jnp.uint32(0), jnp.uint32(0)])
