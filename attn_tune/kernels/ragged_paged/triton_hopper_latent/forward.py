"""A ragged call over latents as a call of ``paged_decode``, whose kernel for Hopper attends.

Latents have one key head, so that a token of 64 heads or more fills its tiles of 64 rows: each query is a sequence of
one new token there, which ends at its own position. Of fewer heads several queries, the last ones of a sequence or
those before, are the new tokens of one, and the first of these may have queries before it whose output is dropped.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn_tune.kernels.paged_decode.triton_hopper.config import Config
from attn_tune.kernels.paged_decode.triton_hopper.forward import forward as decode_forward
from attn_tune.kernels.ragged_paged._triton.decoding import decode_problem
from attn_tune.kernels.ragged_paged.triton_hopper_latent.space import queries_of
from attn_tune.ops.fields.cache import sizes_of
from attn_tune.ops.paged_decode.operands import Operands as DecodeOperands
from attn_tune.ops.ragged_paged.operands import Operands
from attn_tune.ops.ragged_paged.problem import Problem

# Sequences of a launch, whose programs read the lengths of all: registers of a warp hold no more.
_MOST_SEQUENCES = 4096

type Rows = tuple[Float[Array, "blocks queries N V"], Float[Array, "blocks queries N"]]


def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, jax.Array]:
    """``out`` [tokens, N, V] in q's dtype and ``lse`` [tokens, N] in float32."""
    o, queries = operands, queries_of(problem)
    tokens, ends = o.q.shape[0], o.cu_q_lens[1:]
    token = jnp.arange(tokens, dtype=jnp.int32)
    sequence = _owner(ends, token)
    is_own = token < ends[-1]
    behind = ends[sequence] - 1 - token
    if queries == 1:
        # What belongs to no sequence is decoded as an empty one, whose output is zero.
        out, lse = _decoded(problem, config, o, o.q[:, None], sequence, jnp.where(is_own, behind, -1))
        out, lse = out[:, 0], lse[:, 0]
    else:
        batch = ends.shape[0]
        last = jnp.cumsum(-(-jnp.maximum(ends - o.cu_q_lens[:-1], 0) // queries))
        block = jnp.arange(min(tokens, (tokens + batch * (queries - 1)) // queries), dtype=jnp.int32)
        owner = _owner(last, block)
        after = (last[owner] - 1 - block) * queries
        rows = (ends[owner] - after - queries)[:, None] + jnp.arange(queries, dtype=jnp.int32)
        q = jnp.take(o.q, rows, axis=0, mode="clip")
        found = _decoded(problem, config, o, q, owner, jnp.where(block < last[-1], after, -1))
        place = (last[sequence] - 1 - behind // queries, queries - 1 - behind % queries)
        out, lse = (x.at[place].get(mode="clip") for x in found)
        out = jnp.where(is_own[:, None, None], out, 0)
    return {"out": out, "lse": jnp.where(is_own[:, None], lse, -jnp.inf)}


def _owner(ends: Int[Array, " B"], index: Int[Array, " n"]) -> Int[Array, " n"]:
    """The sequence of each index, of sequences with these ends; the last one of an index behind all."""
    return jnp.minimum(jnp.searchsorted(ends, index, side="right", method="scan_unrolled"), ends.shape[0] - 1).astype(
        jnp.int32
    )


def _decoded(
    problem: Problem,
    config: Config,
    operands: Operands,
    q: Float[Array, "blocks queries N H"],
    sequence: Int[Array, " blocks"],
    after: Int[Array, " blocks"],
) -> Rows:
    """The output and the natural lse of blocks of queries, each of a sequence that has ``after`` more behind it.

    A block with a negative ``after`` belongs to no sequence.
    """
    o, (blocks, queries) = operands, q.shape[:2]
    assert o.page_table is not None, "a contiguous cache is refused"
    lengths = jnp.clip(o.kv_lens, 0, sizes_of(problem.layout, o.k.shape)["slot"] * o.page_table.shape[1])[sequence]
    lengths = jnp.where(after < 0, 0, lengths - after if problem.causal else lengths)
    found: list[Rows] = []
    for first in range(0, blocks, _MOST_SEQUENCES):
        some = slice(first, min(first + _MOST_SEQUENCES, blocks))
        part = DecodeOperands(
            q=q[some], k=o.k, v=None, page_table=o.page_table[sequence[some]], kv_lens=lengths[some], sinks=o.sinks
        )
        decoding = dataclasses.replace(decode_problem(problem), batch=part.q.shape[0], q_len=queries)
        outputs = decode_forward(decoding, config, part)
        found.append((outputs["out"], outputs["lse"]))
    out, lse = (jnp.concatenate(parts) for parts in zip(*found, strict=True))
    return out, lse
