"""From the arguments of a call to a ``Problem`` and its ``Operands``, with every shape checked."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from attn_tune.kernels.flash_attention.core import dims_of
from attn_tune.kernels.flash_attention.operands import Operands
from attn_tune.kernels.flash_attention.options import Options, dropout_words
from attn_tune.kernels.flash_attention.problem import DTYPES, Problem
from attn_tune.kernels.heads import expand_heads
from attn_tune.kernels.masks import MaskInfo
from attn_tune.kernels.visibility import dense_4d
from attn_tune.schema.errors import UsageError


def normalise(
    query: Array,
    key: Array,
    value: Array,
    *,
    options: Options,
    mask: MaskInfo,
    bias: Array | None = None,
    softmax_aux: Array | None = None,
    dropout_seed: Any = None,
) -> tuple[Problem, Operands]:
    """The problem and its arrays. Several sinks of a head become one here, outside the kernels' derivative rule.

    Raises:
      UsageError: shapes or dtypes that do not fit together; the message names the argument.
    """
    shape = check_qkv(query, key, value)
    q_segments, kv_segments = _pair_of_rows(
        "segment_ids", mask.q_segment_ids, mask.kv_segment_ids, shape
    )
    q_positions, kv_positions = _pair_of_rows(
        "positions", mask.q_positions, mask.kv_positions, shape
    )
    needs_positions = mask.causal or mask.window != (None, None)
    if not needs_positions:
        q_positions = kv_positions = None
    dense = None
    if mask.attention_mask is not None:
        dense = fit_4d("attention_mask", dense_4d(mask.attention_mask), shape)
    operands = Operands(
        q=query,
        k=key,
        v=value,
        bias=_bias(bias, shape),
        mask=dense,
        q_segments=q_segments,
        kv_segments=kv_segments,
        q_positions=q_positions,
        kv_positions=kv_positions,
        sinks=None if softmax_aux is None else sinks_of(softmax_aux, shape["N"], shape["K"]),
        dropout=dropout_words(dropout_seed) if options.dropout_rate > 0 else None,
    )
    problem = Problem(
        batch=shape["B"],
        q_len=shape["T"],
        kv_len=shape["S"],
        num_q_heads=shape["N"],
        num_kv_heads=shape["K"],
        head_dim=shape["H"],
        v_head_dim=shape["V"],
        dtype=query.dtype.name,
        causal=mask.causal,
        window=mask.window,
        mask_dims=dims_of(operands.mask),
        bias_dims=dims_of(operands.bias),
        has_segments=q_segments is not None,
        has_positions=q_positions is not None,
        has_sinks=operands.sinks is not None,
        soft_cap=options.soft_cap,
        scale=options.scale,
        dropout_rate=options.dropout_rate,
        logits_dtype=options.logits_dtype,
        precision=options.precision,
    )
    return problem, operands


def check_qkv(query: Array, key: Array, value: Array) -> dict[str, int]:
    """The sizes by letter.

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
        if 0 in array.shape:
            raise UsageError(f"{name} is empty: shape {array.shape}")
    if not query.dtype == key.dtype == value.dtype:
        raise UsageError(
            f"query, key and value must share a dtype, got {query.dtype}, {key.dtype}, {value.dtype}"
        )
    batch, q_len, num_q_heads, head_dim = query.shape
    kv_batch, kv_len, num_kv_heads, key_dim = key.shape
    if key.shape[:3] != value.shape[:3]:
        raise UsageError(
            f"key and value must agree in batch, length and heads, got {key.shape} and {value.shape}"
        )
    if batch != kv_batch or head_dim != key_dim:
        raise UsageError(
            f"query and key must agree in batch and head dim, got {query.shape} and {key.shape}"
        )
    if num_q_heads % num_kv_heads:
        raise UsageError(
            f"query heads ({num_q_heads}) must be a multiple of key/value heads ({num_kv_heads})"
        )
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
        raise UsageError(f"{name} has shape {array.shape}; each axis must be 1 or that of {full}")
    return array


def sinks_of(softmax_aux: Array, num_q_heads: int, num_kv_heads: int) -> Float[Array, " N"]:
    """One float32 logit a query head: several sinks act as one whose logit is their logsumexp.

    ``[N | K | 1, num_sinks]`` is unambiguous. A vector of ``N`` entries is one sink for each query head; a vector of
    another length is that many sinks, shared by all heads.

    Raises:
      UsageError: another rank or number of heads.
    """
    aux = jnp.asarray(softmax_aux)
    if not jnp.issubdtype(aux.dtype, jnp.floating):
        raise UsageError(f"softmax_aux must be floating-point, got {aux.dtype}")
    if aux.ndim == 1:
        aux = aux[:, None] if aux.size == num_q_heads else aux[None]
    if aux.ndim != 2 or aux.shape[0] not in (1, num_kv_heads, num_q_heads) or aux.shape[1] == 0:
        raise UsageError(
            f"softmax_aux must be [num_sinks], [{num_q_heads}] or [heads, num_sinks] with heads 1, {num_kv_heads} "
            f"or {num_q_heads}, got shape {jnp.shape(softmax_aux)}"
        )
    logits = jax.nn.logsumexp(aux.astype(jnp.float32), axis=1)
    return jnp.repeat(logits, num_q_heads // logits.size)


def _bias(bias: Array | None, shape: dict[str, int]) -> Float[Array, "_b _n _t _s"] | None:
    if bias is None:
        return None
    bias = jnp.asarray(bias)
    if bias.ndim != 4 or not jnp.issubdtype(bias.dtype, jnp.floating):
        raise UsageError(
            f"bias must be a floating-point array [1 | B, 1 | K | N, 1 | T, 1 | S], got {bias.dtype}{list(bias.shape)}"
        )
    return fit_4d("bias", bias, shape)


def _pair_of_rows(
    name: str, q_rows: Any, kv_rows: Any, shape: dict[str, int]
) -> tuple[Array | None, Array | None]:
    if q_rows is None and kv_rows is None:
        return None, None
    if q_rows is None or kv_rows is None:
        missing = "q" if q_rows is None else "kv"
        raise UsageError(f"{missing}_{name} is missing: give both sides")
    rows = []
    for side, array, length in (("q", q_rows, shape["T"]), ("kv", kv_rows, shape["S"])):
        array = jnp.asarray(array)
        if array.ndim != 2 or not jnp.issubdtype(array.dtype, jnp.integer):
            raise UsageError(
                f"{side}_{name} must be integers [B, length], got {array.dtype}{list(array.shape)}"
            )
        if array.shape[0] not in (1, shape["B"]) or array.shape[1] != length:
            raise UsageError(
                f"{side}_{name} must have shape {(shape['B'], length)}, got {array.shape}"
            )
        rows.append(jnp.broadcast_to(array.astype(jnp.int32), (shape["B"], length)))
    return rows[0], rows[1]


def as_mask(
    *,
    mask_info: MaskInfo | None,
    attention_mask: Bool[Array, "..."] | None,
    q_segment_ids: Array | None,
    kv_segment_ids: Array | None,
    causal: bool,
    sliding_window: Any,
) -> MaskInfo:
    """Every way of saying a mask, as one: whatever is given must allow a pair.

    Segment ids of the query alone serve both sides, as in self-attention.

    Raises:
      UsageError: ``causal`` is not a Python bool, ``mask_info`` is something else, or only the key side has ids.
    """
    if q_segment_ids is None and kv_segment_ids is not None:
        raise UsageError("q_segment_ids is missing: give both sides, or the query side alone")
    if q_segment_ids is not None and kv_segment_ids is None:
        kv_segment_ids = q_segment_ids
    if isinstance(causal, Tracer) or causal not in (True, False):
        raise UsageError(f"causal must be True or False, got {causal!r}")
    own = MaskInfo(
        attention_mask=attention_mask,
        q_segment_ids=q_segment_ids,
        kv_segment_ids=kv_segment_ids,
        causal=bool(causal),
        sliding_window=sliding_window,
    )
    if mask_info is None:
        return own
    if not isinstance(mask_info, MaskInfo):
        raise UsageError(f"mask_info must be a MaskInfo, got {type(mask_info).__name__}")
    return mask_info & own
