"""Dense attention in which each key counts as often as its block is named, in high precision and in the working dtype.

Some rows of one key head's group are computed at a time, with all its keys (arXiv 2502.11089, section 3.3.2, without
the gate). Gradients are those of ``jax.vjp``, for the cotangent of the lse that the given ``delta`` says.
"""

# pyright: reportUnknownMemberType=false

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn_tune.ops.fields.rounding import round_to
from attn_tune.ops.native_sparse_attention.operands import BackwardInputs, Operands
from attn_tune.ops.native_sparse_attention.problem import Problem
from attn_tune.ops.typed_jax import fori_loop, map_rows, vjp

# Logits of one step.
_STEP_ELEMENTS = 2**25


def reference(problem: Problem, direction: str, inputs: Operands | BackwardInputs) -> dict[str, Array]:
    """``out`` and ``lse``, or ``dq``, ``dk`` and ``dv``, all in float32 and at the highest precision."""
    return _answers(problem, inputs, jnp.dtype(jnp.float32))


def baseline(problem: Problem, direction: str, inputs: Operands | BackwardInputs) -> dict[str, Array]:
    """The same in the working dtype: weights and gradients of logits are rounded to it; sums are float32."""
    return _answers(problem, inputs, jnp.dtype(problem.dtype))


def positions_of(problem: Problem, cu_seqlens: Int[Array, " ends"] | None) -> Int[Array, " T"]:
    """The position of each query in its sequence; -1 or less where it sees nothing at all."""
    row = jnp.arange(problem.q_len, dtype=jnp.int32)
    if cu_seqlens is None:
        return row + problem.offset
    return jnp.where(row < cu_seqlens[-1], row - _first_tokens(row, cu_seqlens), -1)


def _first_tokens(row: Int[Array, " T"], cu_seqlens: Int[Array, " ends"]) -> Int[Array, " T"]:
    """The first token of the sequence of each token."""
    return jnp.max(jnp.where(cu_seqlens[None] <= row[:, None], cu_seqlens[None], 0), axis=1)


def _answers(p: Problem, inputs: Operands | BackwardInputs, dtype: jnp.dtype) -> dict[str, Array]:
    o = inputs if isinstance(inputs, Operands) else inputs.operands
    size = max(1, min(p.q_len, _STEP_ELEMENTS // (p.group_size * p.kv_len)))
    steps = -(-p.q_len // size)
    missing = steps * size - p.q_len
    positions = positions_of(p, o.cu_seqlens)
    row = jnp.arange(p.q_len, dtype=jnp.int32)
    firsts = jnp.zeros_like(row) if o.cu_seqlens is None else _first_tokens(row, o.cu_seqlens)

    def padded(x: Array, fill: int = 0) -> Array:
        """Rows ``[T, ...]`` as ``[steps, size, ...]``."""
        x = jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1), constant_values=fill)
        return x.reshape(steps, size, *x.shape[1:])

    def grouped(x: Array) -> Array:
        """An array ``[B, T, N, ...]`` as ``[B K, steps, size, G, ...]``."""
        x = x.reshape(p.rows, p.q_len, p.num_kv_heads, p.group_size, *x.shape[3:])
        return jax.vmap(padded)(x.swapaxes(1, 2).reshape(-1, p.q_len, *x.shape[3:]))

    def of_heads(x: Array) -> Array:
        return x.swapaxes(1, 2).reshape(-1, *x.shape[1:2], *x.shape[3:])

    q, k, v = grouped(o.q.astype(dtype)), of_heads(o.k).astype(dtype), of_heads(o.v).astype(dtype)
    indices = jax.vmap(functools.partial(padded, fill=-1))(of_heads(o.indices))
    places = padded(positions, -1), padded(firsts)

    def ungrouped(x: Array) -> Array:
        """The inverse of ``grouped``."""
        x = x.reshape(p.rows, p.num_kv_heads, steps * size, p.group_size, *x.shape[4:])[:, :, : p.q_len]
        return x.swapaxes(1, 2).reshape(p.rows, p.q_len, p.num_q_heads, *x.shape[4:])

    def counts(head: Array, step: Array) -> Array:
        return _counts(p, indices[head, step], places[0][step], places[1][step])

    if isinstance(inputs, Operands):

        def forward(place: Int[Array, ""]) -> tuple[Array, Array]:
            head, step = place // steps, place % steps
            return _attend(p, q[head, step], k[head], v[head], counts(head, step))

        out, lse = map_rows(forward, jnp.arange(p.rows * p.num_kv_heads * steps))
        out, lse = (x.reshape(-1, steps, *x.shape[1:]) for x in (out, lse))
        return {"out": ungrouped(out).astype(dtype), "lse": ungrouped(lse)}

    dout, delta = grouped(inputs.dout.astype(jnp.float32)), grouped(inputs.delta)

    def backward(place: Int[Array, ""], sums: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        head, step = place // steps, place % steps
        attend = functools.partial(_attend, p, counts=counts(head, step))
        (out, lse), pull = vjp(attend, q[head, step], k[head], v[head])
        # delta is rowsum(dout * out) - dlse.
        dlse = jnp.where(jnp.isneginf(lse), 0.0, jnp.sum(dout[head, step] * out, -1) - delta[head, step])
        dq, dk, dv = (x.astype(jnp.float32) for x in pull((dout[head, step], dlse)))
        return sums[0].at[head, step].set(dq), sums[1].at[head].add(dk), sums[2].at[head].add(dv)

    zeros = tuple(jnp.zeros(x.shape, jnp.float32) for x in (q, k, v))
    dq, dk, dv = fori_loop(0, p.rows * p.num_kv_heads * steps, backward, (zeros[0], zeros[1], zeros[2]))
    dk, dv = (x.reshape(p.rows, p.num_kv_heads, *x.shape[1:]).swapaxes(1, 2) for x in (dk, dv))
    return {"dq": ungrouped(dq).astype(dtype), "dk": dk.astype(dtype), "dv": dv.astype(dtype)}


def _counts(
    p: Problem, indices: Int[Array, "rows top"], position: Int[Array, " rows"], first: Int[Array, " rows"]
) -> Float[Array, "rows S"]:
    """The number of times that each row counts each key."""
    rows = jnp.arange(indices.shape[0])[:, None]
    known = (indices >= 0) & (indices < p.blocks)
    place = jnp.where(known, indices, p.blocks)
    named = jnp.zeros((indices.shape[0], p.blocks), jnp.float32).at[rows, place].add(1.0, mode="drop")
    token = jnp.arange(p.kv_len, dtype=jnp.int32)[None] - first[:, None]
    block = jnp.clip(token // p.block_size, 0, p.blocks - 1)
    seen = (token >= 0) & (token <= position[:, None])
    return jnp.where(seen, jnp.take_along_axis(named, block, axis=1), 0.0)


def _attend(
    p: Problem,
    q: Float[Array, "rows G H"],
    k: Float[Array, "S H"],
    v: Float[Array, "S V"],
    counts: Float[Array, "rows S"],
) -> tuple[Float[Array, "rows G V"], Float[Array, "rows G"]]:
    precision = jax.lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
    product = functools.partial(jnp.einsum, precision=precision, preferred_element_type=jnp.float32)
    counts = counts[:, None, :]
    logits: Array = p.scale * _with_rounded_cotangent(product("rgh,sh->rgs", q, k), q.dtype)
    highest = jax.lax.stop_gradient(jnp.max(jnp.where(counts > 0, logits, -jnp.inf), axis=-1, keepdims=True))
    highest = jnp.where(jnp.isneginf(highest), 0.0, highest)
    # The inner `where` keeps hidden entries from overflowing, whose gradient would not be a number.
    terms = counts * jnp.exp(jnp.where(counts > 0, logits - highest, 0.0))
    total = jnp.sum(terms, axis=-1, keepdims=True)
    some = jnp.where(total > 0, total, 1.0)
    out = product("rgs,sv->rgv", (terms / some).astype(v.dtype), v)
    lse = jnp.where(total > 0, highest + jnp.log(some), -jnp.inf)
    return out, lse[..., 0]


def _unrounded(x: Array, dtype: jnp.dtype) -> Array:
    return x


def _unrounded_forward(x: Array, dtype: jnp.dtype) -> tuple[Array, None]:
    return x, None


def _rounded_cotangent(dtype: jnp.dtype, _: None, ct: Array) -> tuple[Array]:
    return (round_to(ct, dtype),)


_with_rounded_cotangent = jax.custom_vjp(_unrounded, nondiff_argnums=(1,))
_with_rounded_cotangent.defvjp(_unrounded_forward, _rounded_cotangent)
