"""The op's contract on top of cuDNN's two calls: sinks after the fact, and a given ``delta``."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from attn_tune.kernels.flash_attention.cudnn.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.lang.libraries.cudnn_calls import (
    Settings,
    backward_call,
    forward_call,
)
from attn_tune.kernels.lang.libraries.residuals import with_sinks
from attn_tune.ops.fields.padding import zero_beyond
from attn_tune.ops.fields.rounding import round_to
from attn_tune.ops.flash_attention.operands import BackwardInputs, Operands
from attn_tune.ops.flash_attention.problem import Problem

# A row of the cotangent smaller than this share of the delta correction is lifted to it. dv sees that, so it is as
# small as an output may be large in its dtype.
_LIFT = {"float16": 2.0**-15, "bfloat16": 2.0**-40}


def forward(problem: Problem, config: ForwardConfig, operands: Operands) -> dict[str, Array]:
    """``out``, and ``lse`` if needed. A sink only rescales: it joins the denominator and adds nothing to the sum."""
    q, (k, v) = operands.q, _keys_and_values(operands)
    with_lse = problem.needs_lse or operands.sinks is not None
    out, lse = forward_call(q, k, v, _bias(operands), operands.kv_lengths, _settings(problem), with_lse=with_lse)
    if operands.kv_lengths is not None:
        # Of an entry without keys cuDNN writes no output: what was in memory stays there.
        out = jnp.where(operands.kv_lengths[:, None, None, None] == 0, 0, out)
    if lse is None:
        return {"out": out}
    if operands.kv_lengths is not None:
        lse = jnp.where(operands.kv_lengths[:, None, None] == 0, -jnp.inf, lse)
    return with_sinks(out, lse, operands.sinks)


def backward(problem: Problem, config: BackwardConfig, inputs: BackwardInputs) -> dict[str, Array]:
    """Gradients from the given residuals. With sinks these hold the rescaled output, for which the formulas stand."""
    operands = inputs.operands
    out, dout = inputs.residuals.out, inputs.dout
    if problem.has_lse_gradient:
        out, dout = with_delta(inputs)
    grads = backward_call(
        operands.q,
        *_keys_and_values(operands),
        _bias(operands),
        operands.kv_lengths,
        out,
        inputs.residuals.lse,
        dout,
        _settings(problem),
    )
    # Gradients of keys and values that nothing sees it may leave unwritten.
    grads |= {name: zero_beyond(grads[name], operands.kv_lengths) for name in ("dk", "dv")}
    if operands.bias is not None:
        grads["dbias"] = grads["dbias"].astype(operands.bias.dtype)
    return grads


def with_delta(
    inputs: BackwardInputs,
) -> tuple[Float[Array, "B T N V"], Float[Array, "B T N V"]]:
    """``(out, dout)`` whose row sums of products are the given ``delta``.

    cuDNN computes ``delta = rowsum(dout * out)`` itself and uses ``out`` for nothing else, so what the lse cotangent
    adds is put along ``dout``. A row whose ``dout`` is too small to carry it gets a constant one, 2**-15 (float16) or
    2**-40 (bfloat16) of what is added, which dv then shows.
    What rounding the new ``out`` leaves over is given to one element, that whose own rounding then changes least.
    """
    dtype = inputs.residuals.out.dtype
    dout, out = inputs.dout.astype(jnp.float32), inputs.residuals.out.astype(jnp.float32)
    lift = _LIFT[dtype.name] * jnp.abs(_missing(inputs, out, dout))
    is_small = jnp.max(jnp.abs(dout), axis=-1, keepdims=True) < lift
    # What is lifted to zero could carry nothing, and what is lifted to infinity neither.
    least, most = _representable(dtype)
    dout = round_to(jnp.where(is_small, jnp.clip(lift, least, most), dout), dtype)
    # In two steps: squares of small numbers vanish.
    top = _not_zero(jnp.max(jnp.abs(dout), axis=-1, keepdims=True))
    unit = dout / top
    square = _not_zero(jnp.sum(unit * unit, axis=-1, keepdims=True))
    out = round_to(out + unit * (_missing(inputs, out, dout) / (top * square)), dtype)
    # Of elements large enough, so that no quotient overflows, the one whose new product with dout is the smallest.
    product = dout * out + _missing(inputs, out, dout)
    is_large = jnp.abs(dout) >= jnp.max(jnp.abs(dout), axis=-1, keepdims=True) / 16
    chosen = jnp.argmin(jnp.where(is_large, jnp.abs(product), jnp.inf), axis=-1, keepdims=True)
    is_chosen = (jnp.arange(dout.shape[-1]) == chosen) & (dout != 0)
    out = jnp.where(is_chosen, product / _not_zero(dout), out)
    return out.astype(dtype), dout.astype(dtype)


def _missing(inputs: BackwardInputs, out: Array, dout: Array) -> Float[Array, "B T N 1"]:
    return inputs.delta.transpose(0, 2, 1)[..., None] - jnp.sum(dout * out, axis=-1, keepdims=True)


def _representable(dtype: jnp.dtype) -> tuple[float, float]:
    """The least positive and the largest number that ``dtype`` and float32 without subnormal numbers both have."""
    info = jnp.finfo(dtype)
    return max(float(info.smallest_subnormal), float(jnp.finfo(jnp.float32).tiny)), float(info.max)


def _not_zero(x: Array) -> Array:
    return jnp.where(x == 0, 1.0, x)


def _settings(problem: Problem) -> Settings:
    padded = problem.has_lengths
    if problem.visible_pairs == problem.q_len * problem.kv_len:
        return Settings(scale=problem.scale, padded=padded)
    left, _ = problem.bounds
    window = 0 if left is None else left + 1
    return Settings(scale=problem.scale, causal=True, padded=padded, window=window)


def _keys_and_values(operands: Operands) -> tuple[Array, Array]:
    # cuDNN does not say that it reads nothing behind the lengths that it is given.
    lengths = operands.kv_lengths
    return zero_beyond(operands.k, lengths), zero_beyond(operands.v, lengths)


def _bias(operands: Operands) -> Array | None:
    return None if operands.bias is None else operands.bias.astype(operands.q.dtype)
