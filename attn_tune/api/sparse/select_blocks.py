"""The public ``select_blocks``: the blocks of the highest compressed scores, as native sparse attention takes them."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from attn_tune.api.sparse.compressed import blocks_problem
from attn_tune.ops.fields.arguments import check_qkv, static_float
from attn_tune.ops.fields.integers import as_integer
from attn_tune.ops.fields.packed_arguments import checked_ends
from attn_tune.ops.native_sparse_attention.blocks import blocks_of
from attn_tune.ops.native_sparse_attention.problem import DEFAULT_BLOCK
from attn_tune.ops.typed_jax import map_rows
from attn_tune.schema.errors import UsageError, shown

# Scores of the blocks that are always named; those of others are shares of a softmax, one at most.
_FIRST, _NEAR = 2.0, 3.0
# Logits of one step.
_STEP_ELEMENTS = 2**25


def select_blocks(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B blocks K H"],
    *,
    num_selected: int = 16,
    num_first: int = 1,
    num_near: int = 2,
    kv_len: int | None = None,
    block_size: int = DEFAULT_BLOCK,
    softmax_scale: float | None = None,
    cu_seqlens: Int[Array, " ends"] | None = None,
) -> Int[Array, "B T K num_selected"]:
    """The blocks of the highest scores of each query and key head, as ``native_sparse_attention`` takes them.

    The score of a block is its share of the softmax of ``compressed_attention``, the mean over the query heads of the
    group (arXiv 2502.11089, equations 8 to 10, of equal blocks). The query's own block and those right before it are
    always named, then the first ones, then those of the highest scores among the blocks that end before the query.
    The selection has no derivative. Some queries are computed at a time.

    Args:
      query: ``[B, T, N, H]``; query ``t`` stands at position ``t + kv_len - T``.
      key: a key for each block, as ``mean_pooling`` makes them.
      num_selected: how many are named, at least ``num_first + num_near``; fewer where there are not so many.
      num_first: so many blocks at the begin of a sequence are always named.
      num_near: so many blocks that end with the query's own are always named.
      kv_len: the number of keys before they were compressed; default ``T``.
      block_size: tokens of a block.
      softmax_scale: default ``1/sqrt(H)``.
      cu_seqlens: as in ``native_sparse_attention``; blocks are numbered as by ``mean_pooling``.

    Returns:
      int32 ``[B, T, K, num_selected]``, numbers of blocks of the query's own sequence, -1 last.

    Raises:
      UsageError: an argument is malformed; the message names it.
    """
    sizes = check_qkv(query, key, key)
    num_selected = _counted("num_selected", num_selected, 1)
    num_first, num_near = _counted("num_first", num_first, 0), _counted("num_near", num_near, 0)
    if num_selected < num_first + num_near:
        always = f"num_first={num_first} and num_near={num_near}"
        raise UsageError(f"num_selected={num_selected} is less than {always} together")
    batch, q_len, heads = sizes["B"], sizes["T"], sizes["K"]
    length = q_len if kv_len is None else kv_len
    problem = blocks_problem(query, query, block_size, cu_seqlens, kv_len=length)
    if key.shape[1] != problem.blocks:
        raise UsageError(f"key must have {problem.blocks} blocks beside {length} keys, got shape {key.shape}")
    scale = sizes["H"] ** -0.5 if softmax_scale is None else static_float("softmax_scale", softmax_scale)
    blocks = blocks_of(problem, checked_ends(cu_seqlens, batch, q_len))
    query, key = (_whole(jax.lax.stop_gradient(x)) for x in (query, key))
    count = min(num_selected, problem.blocks)

    def some(rows: Int[Array, " size"]) -> Int[Array, "B size K count"]:
        position = (rows + problem.offset - blocks.firsts[rows])[:, None]
        # Numbers within the query's own sequence.
        block = jnp.arange(problem.blocks, dtype=jnp.int32)[None] - blocks.numbers[rows][:, None]
        own = jnp.where(position < 0, -1, position // problem.block_size)
        whole = (block >= 0) & ((block + 1) * problem.block_size - 1 <= position)
        near = (block >= 0) & (block <= own) & (block > own - num_near)
        first = (block >= 0) & (block <= own) & (block < num_first)
        q = jnp.take(query, rows, axis=1).reshape(batch, -1, heads, sizes["N"] // heads, sizes["H"])
        logits = scale * jnp.einsum("btkgh,bskh->btkgs", q, key, preferred_element_type=jnp.float32)
        logits = jnp.where(whole[:, None, None], logits, -jnp.inf)
        highest = jnp.max(logits, axis=-1, keepdims=True)
        terms = jnp.exp(logits - jnp.where(jnp.isneginf(highest), 0.0, highest))
        total = jnp.sum(terms, axis=-1, keepdims=True)
        shares = jnp.mean(terms / jnp.where(total > 0, total, 1.0), axis=3)
        fixed = jnp.where(near, _NEAR + 1.0 / (1 + own - block).astype(jnp.float32), jnp.where(first, _FIRST, -jnp.inf))
        scores = jnp.maximum(jnp.where(whole[:, None], shares, -jnp.inf), fixed[None, :, None])
        values, places = jax.lax.top_k(scores, count)
        named = places - blocks.numbers[rows][None, :, None, None]
        return jnp.where(jnp.isneginf(values), -1, named).astype(jnp.int32)

    size = max(1, min(q_len, _STEP_ELEMENTS // (batch * sizes["N"] * problem.blocks)))
    steps = -(-q_len // size)
    rows = jnp.minimum(jnp.arange(steps * size, dtype=jnp.int32), q_len - 1).reshape(steps, size)

    found = jnp.moveaxis(map_rows(some, rows), 0, 1).reshape(batch, -1, heads, count)[:, :q_len]
    return jnp.pad(found, ((0, 0), (0, 0), (0, 0), (0, num_selected - count)), constant_values=-1)


def _whole(x: Float[Array, "B tokens heads H"]) -> Float[Array, "B tokens heads H"]:
    """``x`` whose tokens and columns no explicit axis of a mesh cuts: a query is compared with all blocks."""
    sharding = jax.typeof(x).sharding
    batch, tokens, heads, columns = sharding.spec
    if tokens is None and columns is None:
        return x
    return jax.sharding.reshard(x, NamedSharding(sharding.mesh, PartitionSpec(batch, None, heads, None)))


def _counted(name: str, given: Any, least: int) -> int:
    number = as_integer(given)
    if number is None or number < least:
        raise UsageError(f"{name} must be an integer of at least {least}, got {shown(given)}")
    return number
