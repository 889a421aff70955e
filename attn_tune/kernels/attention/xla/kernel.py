"""Dense attention in plain JAX; grouped heads are never repeated. Differentiated by JAX itself."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn_tune.kernels.attention.xla.config import Config
from attn_tune.ops.attention.operands import BackwardInputs, Operands
from attn_tune.ops.attention.problem import Problem
from attn_tune.ops.masks.visibility import in_bounds


def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, Array]:
    """``out`` and ``weights`` in the problem's dtype. The weights are what multiplies v: after dropout."""
    p, o, dtype = problem, operands, jnp.dtype(problem.dtype)
    grouped = (p.batch, p.q_len, p.num_kv_heads, p.num_q_heads // p.num_kv_heads, p.head_dim)
    logits = jnp.einsum(
        "btkgh,bskh->bkgts",
        o.q.astype(dtype).reshape(grouped),
        o.k.astype(dtype),
        preferred_element_type=jnp.float32,
    ).reshape(p.batch, p.num_q_heads, p.q_len, p.kv_len)
    logits = logits * p.scale
    if p.soft_cap is not None:
        logits = p.soft_cap * jnp.tanh(logits / p.soft_cap)
    if o.bias is not None:
        logits = logits + o.bias.astype(logits.dtype)
    weights = _softmax(p, o, logits.astype(p.softmax_dtype)).astype(dtype)
    if o.dropout is not None:
        keep = jax.random.bernoulli(o.dropout, 1.0 - p.dropout_rate, weights.shape)
        weights = jnp.where(keep, weights / (1.0 - p.dropout_rate), 0).astype(dtype)
    out = jnp.einsum(
        "bkgts,bskv->btkgv",
        weights.reshape(p.batch, p.num_kv_heads, -1, p.q_len, p.kv_len),
        o.v.astype(dtype),
        preferred_element_type=jnp.float32,
    ).reshape(p.batch, p.q_len, p.num_q_heads, p.v_head_dim)
    return {"out": out.astype(dtype), "weights": weights}


def backward(problem: Problem, config: Config, inputs: BackwardInputs) -> dict[str, Array]:
    """The gradients by JAX's own derivative of ``forward``."""
    o = inputs.operands
    names = [n for n in ("q", "k", "v", "bias", "sinks") if getattr(o, n) is not None]

    def outputs(*arrays: Array) -> tuple[Array, Array]:
        result = forward(problem, config, o._replace(**dict(zip(names, arrays, strict=True))))
        return result["out"], result["weights"]

    _, pull = jax.vjp(outputs, *(getattr(o, n) for n in names))
    grads = pull((inputs.dout, inputs.dweights))
    return {f"d{name}": grad for name, grad in zip(names, grads, strict=True)}


def _softmax(p: Problem, o: Operands, logits: Float[Array, "B N T S"]) -> Float[Array, "B N T S"]:
    rows = (jnp.arange(p.q_len) + p.kv_len - p.q_len)[:, None]
    visible = in_bounds(rows, jnp.arange(p.kv_len)[None], causal=p.causal, window=p.window)
    if o.mask is not None:
        visible = visible & o.mask
    top = jnp.max(logits, axis=-1, keepdims=True, where=visible, initial=-jnp.inf)
    if o.sinks is not None:
        sinks = o.sinks.astype(logits.dtype)[None, :, None, None]
        top = jnp.maximum(top, sinks)
    # A row that sees nothing has no largest logit; zero in its place keeps NaN out of both passes.
    top = jax.lax.stop_gradient(jnp.where(jnp.isneginf(top), 0, top))
    powers = jnp.where(visible, jnp.exp(jnp.where(visible, logits - top, 0)), 0)
    total = jnp.sum(powers, axis=-1, keepdims=True)
    if o.sinks is not None:
        total = total + jnp.exp(sinks - top)
    return powers / jnp.where(total > 0, total, 1)
