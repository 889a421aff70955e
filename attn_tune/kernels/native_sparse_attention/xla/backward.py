"""The backward in plain JAX: dq as the forward; dk and dv block after block over the queries that name it.

Nothing is scattered, so that equal inputs give equal bits.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn_tune.kernels.native_sparse_attention._lists.lists import lists_of
from attn_tune.kernels.native_sparse_attention.xla.config import Config
from attn_tune.kernels.native_sparse_attention.xla.gathered import map_queries, named_by, product
from attn_tune.ops.native_sparse_attention.blocks import Blocks, blocks_of
from attn_tune.ops.native_sparse_attention.operands import BackwardInputs
from attn_tune.ops.native_sparse_attention.problem import Problem
from attn_tune.ops.typed_jax import fori_loop


def backward(problem: Problem, config: Config, inputs: BackwardInputs) -> dict[str, Array]:
    """``dq``, ``dk`` and ``dv``, each like its primal, accumulated in float32."""
    blocks = blocks_of(problem, inputs.operands.cu_seqlens)
    lse = inputs.residuals.lse
    # exp(logit - inf) is 0: rows that see nothing have no gradient.
    lse = jnp.where(jnp.isneginf(lse), jnp.inf, lse)
    dk, dv = _key_gradients(problem, config, inputs, blocks, lse)
    return {"dq": _query_gradient(problem, config, inputs, blocks, lse), "dk": dk, "dv": dv}


def _query_gradient(
    p: Problem, config: Config, inputs: BackwardInputs, blocks: Blocks, lse: Float[Array, "B T N"]
) -> Float[Array, "B T N H"]:
    o = inputs.operands

    def one(given: tuple[Array, ...]) -> Array:
        row, query, q, dout, lse, delta = given
        named = named_by(p, o, blocks, row, query)
        logits = product(p, "kgh,ksh->kgs", q, named.k) * p.scale
        weights = jnp.where(named.valid[:, None], jnp.exp(logits - lse[..., None]), 0.0)
        slopes = weights * (product(p, "kgv,ksv->kgs", dout, named.v) - delta[..., None])
        return (p.scale * product(p, "kgs,ksh->kgh", slopes.astype(q.dtype), named.k)).astype(q.dtype)

    return map_queries(p, config.rows, one, o.q, inputs.dout, lse, inputs.delta).reshape(o.q.shape)


def _key_gradients(
    p: Problem, config: Config, inputs: BackwardInputs, blocks: Blocks, lse: Float[Array, "B T N"]
) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K V"]]:
    o, size = inputs.operands, p.block_size
    lists = lists_of(p, o, blocks)
    entries = lists.queries.shape[0]

    def of_heads(x: Array) -> Array:
        """An array of the query side as ``[B T, K, G, ...]``."""
        return x.reshape(-1, p.num_kv_heads, p.group_size, *x.shape[3:])

    rows = tuple(of_heads(x) for x in (o.q, inputs.dout, lse, inputs.delta))
    # The last block may end behind the last key.
    k, v = (jnp.pad(x, ((0, 0), (0, size), (0, 0), (0, 0))) for x in (o.k, o.v))

    def one(owner: Int[Array, ""]) -> tuple[Array, Array]:
        row, head, block = owner // (p.num_kv_heads * p.blocks), owner // p.blocks % p.num_kv_heads, owner % p.blocks
        begin, end = lists.starts[owner], lists.starts[owner + 1]
        first = blocks.begins[block]
        token = first + jnp.arange(size, dtype=jnp.int32)
        # Of one type, also where JAX has 64-bit integers.
        place = (row, first, head, jnp.zeros_like(row))
        keys, values = (jax.lax.dynamic_slice(x, place, (1, size, 1, x.shape[3]))[0, :, 0] for x in (k, v))

        def step(i: Int[Array, ""], sums: tuple[Array, Array]) -> tuple[Array, Array]:
            entry = begin + i * config.rows + jnp.arange(config.rows, dtype=jnp.int32)
            query = lists.queries[jnp.minimum(entry, entries - 1)]
            q, dout, lse, delta = (x[query, head] for x in rows)
            position = query % p.q_len + p.offset
            seen = (entry < end)[:, None] & (token <= position[:, None]) & (token < blocks.ends[block])
            logits = product(p, "rgh,sh->rgs", q, keys) * p.scale
            weights = jnp.where(seen[:, None], jnp.exp(logits - lse[..., None]), 0.0)
            slopes = weights * (product(p, "rgv,sv->rgs", dout, values) - delta[..., None])
            return (
                sums[0] + product(p, "rgs,rgh->sh", slopes.astype(q.dtype), q),
                sums[1] + product(p, "rgs,rgv->sv", weights.astype(q.dtype), dout),
            )

        zeros = jnp.zeros((size, p.head_dim), jnp.float32), jnp.zeros((size, p.v_head_dim), jnp.float32)
        return fori_loop(0, (end - begin + config.rows - 1) // config.rows, step, zeros)

    dk, dv = jax.lax.map(one, jnp.arange(p.rows * p.num_kv_heads * p.blocks, dtype=jnp.int32))
    return _of_tokens(p, blocks, p.scale * dk).astype(o.k.dtype), _of_tokens(p, blocks, dv).astype(o.v.dtype)


def _of_tokens(p: Problem, blocks: Blocks, x: Float[Array, "blocks block width"]) -> Float[Array, "B S K width"]:
    """Sums of the keys of each block, put at their tokens."""
    x = x.reshape(p.rows, p.num_kv_heads, p.blocks * p.block_size, x.shape[2])
    token = jnp.arange(p.kv_len, dtype=jnp.int32)
    # Of packed sequences there are as many queries as keys; others have one sequence.
    first, number = (
        (jnp.zeros_like(token), jnp.zeros_like(token)) if not p.is_packed else (blocks.firsts, blocks.numbers)
    )
    place = number * p.block_size + token - first
    found = jnp.take(x, jnp.maximum(place, 0), axis=2, mode="clip")
    return jnp.where((token >= first)[:, None], found, 0.0).swapaxes(1, 2)
