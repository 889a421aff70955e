"""The public ``attention``: dense, returns its weights."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key

from attn_tune.api.attention_arrays import LETTERS, SHARED, with_shapes
from attn_tune.api.call import run
from attn_tune.api.declaration import Call
from attn_tune.ops.attention.operands import BackwardInputs, Operands
from attn_tune.ops.attention.problem import NAME, Problem
from attn_tune.ops.fields.arguments import (
    as_mask,
    check_qkv,
    checked_bias,
    dims_of,
    dtype_name,
    fit_4d,
    lengths_of,
    static_float,
    typed_key,
)
from attn_tune.ops.fields.padding import zero_beyond
from attn_tune.ops.fields.sinks import sinks_of
from attn_tune.ops.masks.mask_info import MaskInfo
from attn_tune.ops.masks.visibility import dense_4d
from attn_tune.schema.errors import UsageError, shown


def _outputs(problem: Problem, operands: Operands) -> dict[str, jax.ShapeDtypeStruct]:
    batch, q_len, heads, _ = operands.q.shape
    kv_len, v_head_dim = operands.v.shape[1], operands.v.shape[3]
    dtype = jnp.dtype(problem.dtype)
    return {
        "out": jax.ShapeDtypeStruct((batch, q_len, heads, v_head_dim), dtype),
        "weights": jax.ShapeDtypeStruct((batch, heads, q_len, kv_len), dtype),
    }


def _backward_inputs(operands: Operands, residuals: dict[str, Array], cotangents: dict[str, Array]) -> BackwardInputs:
    return BackwardInputs(operands, cotangents["out"], cotangents["weights"])


CALL = Call(
    op=NAME,
    letters={**LETTERS, "dropout": "", "weights": "bnts", "dweights": "bnts"},
    outputs=_outputs,
    with_shapes=with_shapes,
    # The bits that drop a weight depend on the shape of all weights: a shard would drop others.
    indivisible=("dropout",),
    gradients=("q", "k", "v", "bias", "sinks"),
    backward_inputs=_backward_inputs,
    plain_derivative=True,
    **SHARED,
)


def attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K V"],
    bias: Float[Array, "_b _h _t _s"] | None = None,
    dropout_rng: Key[Array, ""] | None = None,
    softmax_aux: Float[Array, "..."] | None = None,
    *,
    mask_info: MaskInfo | None = None,
    attention_mask: Bool[Array, "..."] | Int[Array, "..."] | None = None,
    init_bias: Callable[[], Float[Array, "_b _h _t _s"]] | None = None,
    deterministic: bool = True,
    softmax_scale: float | None = None,
    logits_soft_cap: float | None = None,
    dtype: Any = jnp.bfloat16,
    softmax_dtype: Any = None,
    dropout_prob: float = 0.0,
    causal: bool = False,
    sliding_window: int | tuple[int | None, int | None] | None = None,
    platform: str | Mapping[str, str | None] | None = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Sequence[PartitionSpec | None] | None = None,
    out_specs: PartitionSpec | None = None,
) -> tuple[Float[Array, "B T N V"], Float[Array, "B N T S"]]:
    """Dense attention: ``(out, weights)``, both in ``dtype``; O(T S) memory.

    Differentiable in query, key, value, bias and softmax_aux, in reverse mode. Forward and backward are chosen apart;
    second derivatives are those of the plain computation.

    The weights are those that multiply the values: after dropout, sinks left out. A row that sees nothing has zero
    weights and a zero output. Alignment is at the bottom right: row ``i`` stands at position ``i + S - T``.

    Args:
      bias: ``[1 | B, 1 | K | N, 1 | T, 1 | S]``, added after the soft cap. A mask given with it applies as well.
      dropout_rng: a key; needed, and used, only with ``deterministic=False`` and ``dropout_prob > 0``. Every batch
        entry and head drops its own weights; kept ones are scaled by ``1/(1 - dropout_prob)``.
      softmax_aux: attention sinks, as in ``flash_attention``.
      mask_info: a mask with its structure. Every mask that is given must allow a pair. The padding of
        ``MaskInfo.from_lengths`` may hold NaN and infinities; all else must be finite, where masks hide it too.
      attention_mask: a dense mask, as in ``flash_attention``; nonzero may attend.
      causal: a row sees its own position and those before it.
      sliding_window: ``w`` or ``(left, right)``, as in ``flash_attention``.
      init_bias: makes the bias; called only when there is neither a bias nor a mask.
      softmax_scale: default ``1/sqrt(H)``.
      dtype: of the products and the results; inputs are cast to it.
      softmax_dtype: of the softmax; None is float32.
      platform: the kernels to use, as in ``flash_attention``.
      cfg: the configs to use, as in ``flash_attention``.
      mesh: run under ``shard_map`` over batch and heads, as in ``flash_attention``; not with dropout.
      in_specs: the specs of the operands on ``mesh``, as in ``flash_attention``.
      out_specs: the spec of ``out``.

    Raises:
      UsageError: an argument is malformed; the message names it.
      UnsupportedError: no kernel can do this here, or not the requested one.
    """
    shape = check_qkv(query, key, value)
    mask = as_mask(
        mask_info=mask_info,
        attention_mask=attention_mask,
        q_segment_ids=None,
        kv_segment_ids=None,
        causal=causal,
        sliding_window=sliding_window,
    )
    if bias is None and mask_info is None and attention_mask is None and init_bias is not None:
        bias = init_bias()
    if mask.q_positions is not None:
        dense, causal, window = mask.get_or_compute_attention_mask(), False, (None, None)
    else:
        # No pair is further apart than this: a wider window hides nothing.
        most = max(shape["T"], shape["S"])
        causal = mask.causal
        left, right = (None if bound is None or bound >= most else bound for bound in mask.window)
        window = left, right
        dense = MaskInfo(
            attention_mask=mask.attention_mask,
            q_segment_ids=mask.q_segment_ids,
            kv_segment_ids=mask.kv_segment_ids,
        ).get_or_compute_attention_mask()
    rate = static_float("dropout_prob", dropout_prob)
    if not 0.0 <= rate < 1.0:
        raise UsageError(f"dropout_prob must be in [0, 1), got {shown(rate)}")
    drops = rate > 0 and not deterministic
    if drops and dropout_rng is None:
        raise UsageError("dropout_rng is missing: dropout needs a key when deterministic=False")
    q_lengths, kv_lengths = lengths_of(mask, shape["B"])
    operands = Operands(
        q=zero_beyond(jnp.asarray(query), q_lengths),
        k=zero_beyond(jnp.asarray(key), kv_lengths),
        v=zero_beyond(jnp.asarray(value), kv_lengths),
        bias=checked_bias(bias, shape),
        mask=None if dense is None else fit_4d("attention_mask", dense_4d(dense), shape),
        sinks=None if softmax_aux is None else sinks_of(softmax_aux, shape["N"], shape["K"]),
        dropout=typed_key(dropout_rng) if drops else None,
    )
    problem = Problem(
        batch=shape["B"],
        q_len=shape["T"],
        kv_len=shape["S"],
        num_q_heads=shape["N"],
        num_kv_heads=shape["K"],
        head_dim=shape["H"],
        v_head_dim=shape["V"],
        dtype=dtype_name("dtype", dtype),
        softmax_dtype=dtype_name("softmax_dtype", softmax_dtype or jnp.float32),
        causal=causal,
        window=window,
        mask_dims=dims_of(operands.mask),
        bias_dims=dims_of(operands.bias),
        has_sinks=operands.sinks is not None,
        soft_cap=None if logits_soft_cap is None else static_float("logits_soft_cap", logits_soft_cap),
        scale=shape["H"] ** -0.5 if softmax_scale is None else static_float("softmax_scale", softmax_scale),
        dropout_rate=rate if drops else 0.0,
    )
    outputs = run(
        CALL,
        problem,
        operands,
        platform=platform,
        cfg=cfg,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
    )
    # Rows of padding are zero already; this is for their cotangents, which may not be numbers.
    return zero_beyond(outputs["out"], q_lengths), outputs["weights"]
