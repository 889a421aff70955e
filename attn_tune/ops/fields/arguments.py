"""Checks of the arguments that every public op takes."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from attn_tune.ops.fields.heads import expand_heads
from attn_tune.ops.fields.integers import saturated
from attn_tune.ops.masks.mask_info import MaskInfo
from attn_tune.schema.errors import UsageError, shown

DTYPES = ("bfloat16", "float16", "float32")


def typed_key(key: Any) -> Any:
    """A key of ``jax.random`` as it is now; raw uint32 keys of the older API are still what many models carry."""
    if hasattr(key, "dtype") and not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(key)
    return key


def check_qkv(query: Array, key: Array, value: Array, *, may_be_empty: bool = False) -> dict[str, int]:
    """The sizes by letter.

    Args:
      may_be_empty: whether the batch and the lengths may be zero.

    Raises:
      UsageError: not BTNH, mismatched sizes, or a dtype that no kernel has.
    """
    for name, array in (("query", query), ("key", key), ("value", value)):
        if not hasattr(array, "ndim") or array.ndim != 4:
            raise UsageError(
                f"{name} must be a 4-D array [batch, length, heads, head dim], "
                f"got shape {getattr(array, 'shape', None)}"
            )
        if array.dtype.name not in DTYPES:
            raise UsageError(f"{name} must have dtype {', '.join(DTYPES)}, got {array.dtype}")
        if 0 in array.shape[2 if may_be_empty else 0 :]:
            raise UsageError(f"{name} is empty: shape {array.shape}")
    if not query.dtype == key.dtype == value.dtype:
        raise UsageError(f"query, key and value must share a dtype, got {query.dtype}, {key.dtype}, {value.dtype}")
    batch, q_len, num_q_heads, head_dim = query.shape
    kv_batch, kv_len, num_kv_heads, key_dim = key.shape
    if key.shape[:3] != value.shape[:3]:
        raise UsageError(f"key and value must agree in batch, length and heads, got {key.shape} and {value.shape}")
    if batch != kv_batch or head_dim != key_dim:
        raise UsageError(f"query and key must agree in batch and head dim, got {query.shape} and {key.shape}")
    if num_q_heads % num_kv_heads:
        raise UsageError(f"query heads ({num_q_heads}) must be a multiple of key/value heads ({num_kv_heads})")
    sizes = (batch, q_len, kv_len, num_q_heads, num_kv_heads, head_dim, value.shape[3])
    return dict(zip("BTSNKHV", sizes, strict=True))


def fit_4d(name: str, array: Array, shape: dict[str, int]) -> Array:
    """A 4-D bias or mask checked against ``[1 | B, 1 | K | N, 1 | T, 1 | S]``, with key/value heads repeated.

    Raises:
      UsageError: an axis fits neither 1 nor its size.
    """
    array = expand_heads(array, shape["N"], shape["K"], name=name)  # type: ignore[assignment]
    full = (shape["B"], shape["N"], shape["T"], shape["S"])
    if any(size not in (1, whole) for size, whole in zip(array.shape, full, strict=True)):
        # Of two axes, [queries, keys] is what other projects take.
        hint = "; one of two axes is [batch, keys]" if "mask" in name and array.shape[1:3] == (1, 1) else ""
        raise UsageError(f"{name} has shape {array.shape}; each axis must be 1 or that of {full}{hint}")
    return array


def checked_bias(bias: Array | None, shape: dict[str, int]) -> Float[Array, "_b _n _t _s"] | None:
    """A bias as a 4-D array of the op; None stays None.

    Raises:
      UsageError: another rank, not floating-point, or a shape that does not fit.
    """
    if bias is None:
        return None
    bias = check_array("bias", bias)
    if bias.ndim != 4 or not jnp.issubdtype(bias.dtype, jnp.floating):
        raise UsageError(
            f"bias must be a floating-point array [1 | B, 1 | K | N, 1 | T, 1 | S], got {bias.dtype}{list(bias.shape)}"
        )
    return fit_4d("bias", bias, shape)


def static_float(name: str, value: Any) -> float:
    """``value`` as a Python float.

    Raises:
      UsageError: it is traced, not a number, or not finite.
    """
    if isinstance(value, Tracer):
        raise UsageError(f"{name} must be a Python number, not a traced value: it decides the kernel")
    try:
        # ``float`` takes these too.
        number = None if isinstance(value, str | bytes | bool | np.bool_) else float(value)
    except (TypeError, ValueError):
        number = None
    except OverflowError:
        raise UsageError(f"{name} must be a finite number, got an integer beyond floats") from None
    if number is None:
        raise UsageError(f"{name} must be a number, got {shown(value)}")
    if not math.isfinite(number):
        raise UsageError(f"{name} must be finite, got {number}")
    return number


def dtype_name(name: str, dtype: Any) -> str:
    """The name of a dtype that kernels have.

    Raises:
      UsageError: another dtype, or none.
    """
    try:
        found = np.dtype(dtype).name
    except TypeError:
        found = ""
    if found not in DTYPES:
        raise UsageError(f"{name} must be one of {', '.join(DTYPES)}, got {shown(dtype)}")
    return found


def checked_flag(name: str, given: Any) -> bool:
    """``given``, which is True or False and nothing like them, as a Python bool.

    Raises:
      UsageError: it is something else.
    """
    if type(given) not in (bool, np.bool_):
        raise UsageError(f"{name} must be True or False, got {shown(given)}")
    return bool(given)


def as_mask(
    *,
    mask_info: MaskInfo | None,
    attention_mask: Bool[Array, "..."] | None,
    q_segment_ids: Array | None,
    kv_segment_ids: Array | None,
    causal: bool,
    sliding_window: Any,
) -> MaskInfo:
    """Every form of a mask, as one: all that are given must allow a pair.

    Segment ids of the query alone serve both sides, as in self-attention.

    Raises:
      UsageError: ``causal`` is not a Python bool, ``mask_info`` is something else, or only the key side has ids.
    """
    if q_segment_ids is None and kv_segment_ids is not None:
        raise UsageError("q_segment_ids is missing: give both sides, or the query side alone")
    if q_segment_ids is not None and kv_segment_ids is None:
        kv_segment_ids = q_segment_ids
    # Callers may pass anything, arrays among it.
    is_traced = isinstance(causal, Tracer)  # pyright: ignore[reportUnnecessaryIsInstance]
    if is_traced or getattr(causal, "size", 1) != 1 or causal not in (True, False):
        raise UsageError(f"causal must be True or False, got {shown(causal)}")
    own = MaskInfo(
        attention_mask=attention_mask,
        q_segment_ids=q_segment_ids,
        kv_segment_ids=kv_segment_ids,
        causal=bool(causal),
        sliding_window=sliding_window,
    )
    if mask_info is None:
        return own
    if not isinstance(mask_info, MaskInfo):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"mask_info must be a MaskInfo, got {type(mask_info).__name__}")
    return mask_info & own


def lengths_of(mask: MaskInfo, batch: int) -> tuple[Int[Array, " B"] | None, Int[Array, " B"] | None]:
    """The lengths of queries and keys behind which there is padding. Without the ids that say the same: none.

    Raises:
      UsageError: another shape than ``[B]`` or ``[1]``.
    """
    found: list[Array | None] = []
    for name in ("q_lengths", "kv_lengths"):
        lengths = getattr(mask, name) if mask.q_segment_ids is not None else None
        if lengths is not None:
            lengths = jnp.asarray(lengths)
            if lengths.shape not in ((1,), (batch,)):
                raise UsageError(f"{name} must have shape {(batch,)}, got {lengths.shape}")
            lengths = jnp.broadcast_to(lengths, (batch,))
        found.append(lengths)
    return found[0], found[1]


def dims_of(array: Array | None) -> str | None:
    """Names the axes that a 4-D mask or bias has: ``"b1ts"``. An axis of size 1 always counts as broadcast."""
    if array is None:
        return None
    return "".join("1" if size == 1 else letter for size, letter in zip(array.shape, "bnts", strict=True))


def check_array(name: str, given: Any) -> Array:
    """``given`` as an array. Integers of arrays that are beyond int32 become its ends; a Python integer does not.

    Raises:
      UsageError: it is none.
    """
    try:
        if not isinstance(given, str | bytes):
            return jnp.asarray(given if isinstance(given, int) else saturated(given))
    except (TypeError, ValueError, OverflowError):
        pass
    kind = type(given).__name__
    raise UsageError(
        f"{name} must be an array, of a dtype that JAX has and integers within int32, got {shown(given)} ({kind})"
    )


def check_not_empty(name: str, array: Array) -> Array:
    """``array``, which has elements.

    Raises:
      UsageError: it has none.
    """
    if array.size == 0:
        raise UsageError(
            f"{name} is empty, its shape is {array.shape}; leave the call out where there is no sequence or no token"
        )
    return array
