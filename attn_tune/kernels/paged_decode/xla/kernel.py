"""Decoding in plain JAX: an online softmax over steps of keys, gathered from the pages of all sequences."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from attn_tune.kernels.lang.cache import gathered
from attn_tune.kernels.paged_decode.xla.config import Config
from attn_tune.ops.fields.cache import sizes_of
from attn_tune.ops.paged_decode.operands import Operands
from attn_tune.ops.paged_decode.problem import Problem

type State = tuple[Array, Array, Array]


def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, Array]:
    """``out`` [B, T, N, V] in q's dtype and ``lse`` [B, T, N] in float32."""
    p, o = problem, operands
    sizes = sizes_of(p.layout, o.k.shape)
    batch, q_len, num_q_heads, head_dim = o.q.shape
    kv_heads = sizes["head"]
    capacity = sizes["slot"] * (1 if o.page_table is None else o.page_table.shape[1])
    lengths = jnp.clip(o.kv_lens, 0, capacity)
    first = jnp.zeros_like(lengths) if p.window is None else jnp.maximum(lengths - q_len - p.window, 0)
    position = (lengths[:, None] - q_len + jnp.arange(q_len))[:, None, None, :, None]
    q = o.q.reshape(batch, q_len, kv_heads, num_q_heads // kv_heads, head_dim)
    precision = "highest" if o.q.dtype == jnp.float32 else None

    def step(i: Int[Array, ""], state: State) -> State:
        acc, total, maximum = state
        token = i * config.step + jnp.arange(config.step)
        counts = (token < lengths[:, None]) & (token >= first[:, None])
        k, v, k_scale, v_scale = gathered(p, o, jnp.arange(batch), token, counts)
        logits = jnp.einsum("btkgh,bskh->bkgts", q, k, preferred_element_type=jnp.float32, precision=precision)
        logits *= p.scale if k_scale is None else p.scale * k_scale
        if p.soft_cap is not None:
            logits = p.soft_cap * jnp.tanh(logits / p.soft_cap)
        visible = counts[:, None, None, None, :] & (token <= position)
        if p.window is not None:
            visible &= token >= position - p.window
        logits = jnp.where(visible, logits, -jnp.inf)
        highest = jnp.maximum(maximum, jnp.max(logits, axis=-1))
        shift = jnp.where(jnp.isneginf(highest), 0.0, highest)
        weights = jnp.exp(logits - shift[..., None])
        correction = jnp.exp(maximum - shift)
        total = total * correction + jnp.sum(weights, axis=-1)
        if v_scale is not None:
            weights = weights * v_scale
        product = jnp.einsum(
            "bkgts,bskv->bkgtv", weights.astype(v.dtype), v, preferred_element_type=jnp.float32, precision=precision
        )
        return acc * correction[..., None] + product, total, highest

    rows = (batch, kv_heads, num_q_heads // kv_heads, q_len)
    width = head_dim if o.v is None else o.v.shape[-1]
    maximum = jnp.full(rows, -jnp.inf)
    if o.sinks is not None:
        maximum = jnp.broadcast_to(o.sinks.reshape(1, kv_heads, -1, 1), rows)
    total = jnp.where(jnp.isneginf(maximum), 0.0, 1.0)
    # A zero that varies as the queries do: under shard_map a loop keeps the types that it starts with.
    like = 0.0 * o.q[:1, :1, :1, :1].astype(jnp.float32).sum()
    start = (jnp.zeros((*rows, width)) + like, total + like, maximum + like)
    begin, end = jnp.min(first) // config.step, -(-jnp.max(lengths) // config.step)
    acc, total, maximum = jax.lax.fori_loop(begin, end, step, start)
    seen = total > 0
    out = acc / jnp.where(seen, total, 1.0)[..., None]
    lse = jnp.where(seen, maximum + jnp.log(jnp.where(seen, total, 1.0)), -jnp.inf)
    order = (0, 3, 1, 2)
    return {
        "out": out.transpose(*order, 4).reshape(*o.q.shape[:3], width).astype(o.q.dtype),
        "lse": lse.transpose(order).reshape(o.q.shape[:3]),
    }
