"""Dense attention row by row in float32, and what the working dtype can do. Shares no code with the kernels."""

# JAX declares no types of some functions that stand here.
# pyright: reportUnknownMemberType=false

import jax
import jax.numpy as jnp
from jaxtyping import Array

from attn_tune.ops.attention.operands import BackwardInputs, Operands
from attn_tune.ops.attention.problem import Problem
from attn_tune.ops.typed_jax import vjp


def reference(problem: Problem, direction: str, inputs: Operands | BackwardInputs) -> dict[str, Array]:
    """``out`` and ``weights``, or the gradients of q, k, v and where present of bias and sinks; in float32."""
    return _answer(problem, inputs, jnp.dtype(jnp.float32), "highest")


def baseline(problem: Problem, direction: str, inputs: Operands | BackwardInputs) -> dict[str, Array]:
    """The same with every product's operands and every result in the working dtype."""
    return _answer(problem, inputs, jnp.dtype(problem.dtype), "default")


def _answer(problem: Problem, inputs: Operands | BackwardInputs, dtype: jnp.dtype, precision: str) -> dict[str, Array]:
    if isinstance(inputs, Operands):
        out, weights = _dense(problem, inputs, dtype, precision)
        return {"out": out, "weights": weights}
    o = inputs.operands
    names = [n for n in ("q", "k", "v", "bias", "sinks") if getattr(o, n) is not None]

    def of(*arrays: Array) -> tuple[Array, Array]:
        return _dense(problem, o._replace(**dict(zip(names, arrays, strict=True))), dtype, precision)

    primals = [getattr(o, n) for n in names]
    if precision == "highest":
        primals = [x.astype(jnp.float32) for x in primals]
    outputs, pull = vjp(of, *primals)
    grads = pull((inputs.dout.astype(outputs[0].dtype), inputs.dweights.astype(outputs[1].dtype)))
    return {f"d{n}": g for n, g in zip(names, grads, strict=True)}


def _dense(p: Problem, o: Operands, dtype: jnp.dtype, precision: str) -> tuple[Array, Array]:
    group = p.num_q_heads // p.num_kv_heads
    heads = jnp.arange(p.num_q_heads) // group
    q, k, v = o.q.astype(dtype), o.k.astype(dtype)[:, :, heads], o.v.astype(dtype)[:, :, heads]
    f32 = jnp.float32
    logits = p.scale * jnp.einsum("btnh,bsnh->bnts", q, k, precision=precision, preferred_element_type=f32)
    if p.soft_cap is not None:
        logits = jnp.tanh(logits / p.soft_cap) * p.soft_cap
    if o.bias is not None:
        logits = logits + o.bias.astype(f32)
    ahead = jnp.arange(p.kv_len)[None, :] - (jnp.arange(p.q_len)[:, None] + p.kv_len - p.q_len)
    hidden = jnp.zeros(logits.shape, bool)
    if p.causal:
        hidden |= ahead > 0
    if p.window[0] is not None:
        hidden |= ahead < -p.window[0]
    if p.window[1] is not None:
        hidden |= ahead > p.window[1]
    if o.mask is not None:
        hidden |= ~o.mask
    # Hidden logits are very small rather than infinite: gradients of rows that see nothing stay finite.
    logits = jnp.where(hidden, -1e30, logits)
    top = jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
    extra = 0.0
    if o.sinks is not None:
        sink = o.sinks.astype(f32)[:, None, None]
        top = jnp.maximum(top, jax.lax.stop_gradient(sink))
        extra = jnp.exp(sink - top)
    powers = jnp.where(hidden, 0.0, jnp.exp(logits - top))
    total = powers.sum(axis=-1, keepdims=True) + extra
    weights = (powers / jnp.where(total > 0, total, 1.0)).astype(dtype)
    if o.dropout is not None:
        keep = jax.random.bernoulli(o.dropout, 1.0 - p.dropout_rate, weights.shape)
        weights = jnp.where(keep, weights / (1.0 - p.dropout_rate), 0.0).astype(dtype)
    out = jnp.einsum("bnts,bsnv->btnv", weights, v, precision=precision, preferred_element_type=f32)
    return out.astype(dtype), weights
