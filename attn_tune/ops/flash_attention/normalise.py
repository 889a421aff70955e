"""From the arguments of a call to a ``Problem`` and its ``Operands``, with every shape checked."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from attn_tune.ops.fields.arguments import (
    check_qkv,
    checked_bias,
    dims_of,
    fit_4d,
    lengths_of,
)
from attn_tune.ops.fields.padding import zero_beyond
from attn_tune.ops.fields.sinks import sinks_of
from attn_tune.ops.flash_attention.operands import Operands
from attn_tune.ops.flash_attention.options import Options, dropout_words
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.masks.mask_info import MaskInfo, check_pairs
from attn_tune.ops.masks.visibility import dense_4d
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

    Kernels hide the padding of keys of known lengths. With lengths of the queries too the padding of both sides is
    zeroed here.

    Raises:
      UsageError: shapes or dtypes that do not fit together; the message names the argument.
    """
    shape = check_qkv(query, key, value)
    check_pairs(mask)
    # Lengths of another batch would be blamed on the ids that were made of them.
    q_lengths, kv_lengths = lengths_of(mask, shape["B"])
    q_segments, kv_segments = _pair_of_rows("segment_ids", mask.q_segment_ids, mask.kv_segment_ids, shape)
    q_positions, kv_positions = _pair_of_rows("positions", mask.q_positions, mask.kv_positions, shape)
    query, key, value = jnp.asarray(query), jnp.asarray(key), jnp.asarray(value)
    if q_lengths is not None:
        query = zero_beyond(query, q_lengths)
        key, value = zero_beyond(key, kv_lengths), zero_beyond(value, kv_lengths)
        # The ids say more than the lengths of the keys.
        kv_lengths = None
    q_offsets, kv_offsets = _pair_of_offsets(mask) if shape["B"] == 1 and q_segments is not None else (None, None)
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
        bias=checked_bias(bias, shape),
        mask=dense,
        q_segments=q_segments,
        kv_segments=kv_segments,
        q_positions=q_positions,
        kv_positions=kv_positions,
        sinks=None if softmax_aux is None else sinks_of(softmax_aux, shape["N"], shape["K"]),
        dropout=dropout_words(dropout_seed) if options.dropout_rate > 0 else None,
        kv_lengths=kv_lengths,
        q_offsets=q_offsets,
        kv_offsets=kv_offsets,
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
        has_lengths=kv_lengths is not None,
        has_offsets=q_offsets is not None,
        has_positions=q_positions is not None,
        has_sinks=operands.sinks is not None,
        soft_cap=options.soft_cap,
        scale=options.scale,
        dropout_rate=options.dropout_rate,
        logits_dtype=options.logits_dtype,
        precision=options.precision,
    )
    return problem, operands


def _check_fits(name: str, array: Any) -> None:
    """Refuse known integers that 32 bits do not hold; of traced positions the lower 32 bits count.

    Raises:
      UsageError: there is one.
    """
    if isinstance(array, Array) and (isinstance(array, Tracer) or array.dtype.itemsize <= 4):
        return
    known = np.asarray(array)
    if known.dtype.kind not in "iu" or not known.size:
        return
    least, most, limits = int(known.min()), int(known.max()), np.iinfo(np.int32)
    if not limits.min <= least <= most <= limits.max:
        raise UsageError(f"{name} must fit int32, got values from {least} to {most}: give them smaller numbers")


def _pair_of_rows(name: str, q_rows: Any, kv_rows: Any, shape: dict[str, int]) -> tuple[Array | None, Array | None]:
    if q_rows is None or kv_rows is None:
        return None, None
    rows: list[Array] = []
    for side, array, length in (("q", q_rows, shape["T"]), ("kv", kv_rows, shape["S"])):
        _check_fits(f"{side}_{name}", array)
        check_rows(f"{side}_{name}", array, (shape["B"], length))
        rows.append(jnp.broadcast_to(jnp.asarray(array), (shape["B"], length)))
    if name == "segment_ids" and any(isinstance(array, Tracer) and array.dtype.itemsize > 4 for array in rows):
        rows = _ranked(rows)
    return rows[0].astype(jnp.int32), rows[1].astype(jnp.int32)


def _pair_of_offsets(mask: MaskInfo) -> tuple[Array | None, Array | None]:
    """The offsets of both sides, as far as the mask has them."""
    q, kv = mask.q_offsets, mask.kv_offsets
    if q is None or kv is None:
        return None, None
    if mask.q_lengths is not None or mask.kv_lengths is not None:
        raise UsageError(
            "mask_info has lengths and offsets; its ids can be those of only one of them: leave the other out"
        )
    q, kv = jnp.asarray(q), jnp.asarray(kv)
    if q.ndim != 1 or q.shape != kv.shape or not all(jnp.issubdtype(x.dtype, jnp.integer) for x in (q, kv)):
        raise UsageError(
            "q_offsets and kv_offsets must be two vectors of integers of one length, got "
            f"{q.dtype}{list(q.shape)} and {kv.dtype}{list(kv.shape)}"
        )
    return q, kv


def check_rows(name: str, given: Any, shape: tuple[int, int]) -> None:
    """Check ids or positions ``[B, length]``, or one row for all sequences.

    Raises:
      UsageError: another shape, or no integers.
    """
    array = given if isinstance(given, Array) else np.asarray(given)
    if array.ndim != 2 or not jnp.issubdtype(array.dtype, jnp.integer):
        raise UsageError(f"{name} must be integers [B, length], got {array.dtype}{list(array.shape)}")
    if array.shape not in (shape, (1, shape[1])):
        raise UsageError(f"{name} must have shape {shape}, got {array.shape}")


def _ranked(ids: list[Array]) -> list[Array]:
    """Ids of 64 bits as their places among all of them, in order: only which are equal counts."""
    wide = [array.astype(jnp.int64) for array in ids]
    known = jnp.sort(jnp.concatenate([array.ravel() for array in wide]))
    return [jnp.searchsorted(known, array, method="scan_unrolled") for array in wide]
