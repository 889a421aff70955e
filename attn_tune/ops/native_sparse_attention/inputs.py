"""Random data for one call, made on the device."""

# pyright: reportUnknownMemberType=false

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from attn_tune.ops.fields.long_keys import key_factors
from attn_tune.ops.fields.rounding import round_to
from attn_tune.ops.native_sparse_attention.operands import BackwardInputs, Operands, Residuals
from attn_tune.ops.native_sparse_attention.problem import LOCAL, SAME, Problem
from attn_tune.ops.native_sparse_attention.reference import positions_of, reference
from attn_tune.ops.typed_jax import jit

# Kinds of rows at the edges: as usual, nothing is named, every other entry names nothing, one block fills the row, and
# blocks behind the query's own.
_KINDS = 5
_GARBAGE = (-1, 2**31 - 1, -(2**31))
# Blocks that are named besides those at random: the query's own, the first, and the one before its own.
_FIXED = 3


def make_inputs(problem: Problem, direction: str, seed: int) -> Operands | BackwardInputs:
    """Inputs of one call, the same for the same seed; may be called under ``jit``.

    Queries, keys, values and cotangents are standard normal; of odd seeds some keys are much longer, so that the
    running maximum of a row moves late and far, but not in the backward of float32. A query names each block once, and
    behind those that there are nothing. At the edges the kinds of rows take turns. For ``bwd`` the residuals come from
    the reference.
    """
    p = problem
    keys = jax.random.split(jax.random.key(seed), 6)
    dtype = jnp.dtype(p.dtype)

    def drawn(key: Array, *shape: int) -> Array:
        return rounded(jax.random.normal(key, shape))

    def rounded(drawn: Array) -> Array:
        # So that the compiler keeps it: residuals are of what the kernels are given.
        return round_to(drawn, dtype).astype(dtype)

    k = drawn(keys[1], p.rows, p.kv_len, p.num_kv_heads, p.head_dim)
    if direction == "fwd" or p.dtype != "float32":
        k = rounded(k * key_factors(jnp.arange(p.kv_len), seed, little=p.dtype == "float32")[:, None, None])
    operands = Operands(
        q=drawn(keys[0], p.rows, p.q_len, p.num_q_heads, p.head_dim),
        k=k,
        v=drawn(keys[2], p.rows, p.kv_len, p.num_kv_heads, p.v_head_dim),
        indices=jnp.zeros((), jnp.int32),
        cu_seqlens=jnp.asarray(p.borders, jnp.int32) if p.is_packed else None,
    )
    operands = operands._replace(indices=_named_blocks(p, operands, keys[3]))
    if direction == "fwd":
        return operands
    exact = _reference(p, "fwd", operands)
    dout = drawn(keys[4], *exact["out"].shape)
    out = round_to(exact["out"], dtype).astype(dtype)
    wide = (x.astype(jnp.float32) for x in (out, dout))
    delta = jnp.einsum("btnv,btnv->btn", *wide, precision="highest")
    if p.has_lse_gradient:
        dlse = jax.random.normal(keys[5], delta.shape)
        delta = jnp.where(jnp.isneginf(exact["lse"]), 0.0, delta - dlse)
    return BackwardInputs(operands, Residuals(out, exact["lse"]), dout, delta)


_reference = jit(reference, static_argnums=(0, 1))


def _named_blocks(p: Problem, o: Operands, key: Array) -> Int[Array, "B T K top"]:
    # Blocks that each query can name: those up to its own. One before the first key has none.
    own = (positions_of(p, o.cu_seqlens) // p.block_size)[:, None, None]
    shape = (p.rows, p.q_len, p.num_kv_heads, p.num_selected)
    entry = jnp.arange(p.num_selected, dtype=jnp.int32)
    # So few that all are named, and the same for all.
    all_named = jnp.where(entry <= own, entry, -1)
    if p.workload == SAME:
        indices = jnp.broadcast_to(all_named, shape)
    else:
        shares = jax.random.uniform(key, shape)
        if p.workload == LOCAL and p.num_selected > _FIXED:
            some = 1 + _parts(own - _FIXED, entry - _FIXED, p.num_selected - _FIXED, shares)
        else:
            some = _parts(own, entry, p.num_selected, shares)
        if p.workload == LOCAL:
            fixed = jnp.where(entry == 0, own, jnp.where(entry == 1, 0, own - 1))
            some = jnp.where(entry < _FIXED, fixed, some)
        indices = jnp.where(own < p.num_selected, all_named, some)
    return _with_edges(p, indices, own) if p.at_edges else indices


def _parts(last: Array, part: Array, parts: int, shares: Array) -> Array:
    """One number from each of ``parts`` equal parts of ``0`` to ``last``."""
    # More than a part holds where a row is short; such rows are replaced.
    count = jnp.maximum(last + 1, parts)
    begin = part * count // parts
    width = (part + 1) * count // parts - begin
    return begin + jnp.minimum((shares * width).astype(jnp.int32), width - 1)


def _with_edges(p: Problem, indices: Array, own: Array) -> Int[Array, "B T K top"]:
    row = jnp.arange(p.rows * p.q_len * p.num_kv_heads).reshape(*indices.shape[:3], 1)
    kind, entry = row % _KINDS, jnp.arange(p.num_selected)
    garbage = jnp.asarray(_GARBAGE, jnp.int32)[(entry + row) % len(_GARBAGE)]
    indices = jnp.where(indices < 0, garbage, indices)
    nothing = (kind == 1) | ((kind == 2) & (entry % 2 == 0))
    indices = jnp.where(nothing, garbage, indices)
    indices = jnp.where(kind == 3, indices[..., :1], indices)
    return jnp.where((kind == 4) & (entry % 2 == 1), own + 1 + entry, indices)
