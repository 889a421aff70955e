"""The first sequences of a ragged call as a call of ``paged_decode``, whose kernel attends for them."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn_tune.kernels.lang.triton.tiles import block_cap
from attn_tune.kernels.paged_decode._triton.config import Config as DecodeConfig
from attn_tune.kernels.paged_decode.triton.forward import forward as decode_forward
from attn_tune.kernels.ragged_paged._triton.config import Decoding
from attn_tune.ops.paged_decode.operands import Operands as DecodeOperands
from attn_tune.ops.paged_decode.problem import Problem as DecodeProblem
from attn_tune.ops.ragged_paged.operands import Operands
from attn_tune.ops.ragged_paged.problem import Problem

# Rows of a tile that decodes at most; a group that has more takes several.
_MOST_ROWS = 64


def decode(
    problem: Problem, config: Decoding, operands: Operands
) -> tuple[Float[Array, "B 1 N V"] | None, Float[Array, "B 1 N"] | None]:
    """The output in q's dtype and the natural lse of the first sequences; None of a config that does not decode."""
    if config.decode_programs is None:
        return None, None
    found = decode_forward(decode_problem(problem), decode_config(problem, config), decode_operands(operands))
    return found["out"], found["lse"]


def decode_problem(problem: Problem) -> DecodeProblem:
    """One new token of every sequence; fields of the same name have the same values."""
    names = {field.name for field in dataclasses.fields(DecodeProblem)} - {"q_len", "workload", "at_edges"}
    return DecodeProblem(q_len=1, workload="uni", **{name: getattr(problem, name) for name in names})


def decode_config(problem: Problem, config: Decoding) -> DecodeConfig:
    """The config of the launch that decodes."""
    return DecodeConfig(
        block_q=min(_MOST_ROWS, block_cap(problem.group_size)),
        block_k=config.decode_block_k,
        num_warps=4,
        # A page table is read a stage or two before the keys that it names.
        num_stages=3 if not problem.page_size or config.decode_block_k > 64 else 4,
        num_programs=config.decode_programs,
    )


def decode_operands(operands: Operands) -> DecodeOperands:
    """The first query of each sequence; all but the first sequences with one new token each are empty."""
    o = operands
    batch, tokens = o.kv_lens.shape[0], o.q.shape[0]
    q = o.q[:batch] if tokens >= batch else jnp.pad(o.q, [(0, batch - tokens), (0, 0), (0, 0)])
    return DecodeOperands(
        q=q[:, None],
        k=o.k,
        v=o.v,
        page_table=o.page_table,
        kv_lens=jnp.where(decoding_sequences(o), o.kv_lens, 0),
        sinks=o.sinks,
        k_scale=o.k_scale,
        v_scale=o.v_scale,
    )


def decode_shapes(operands: Operands) -> DecodeOperands:
    """The shapes and dtypes of ``decode_operands``."""
    return jax.eval_shape(decode_operands, operands)


def decoding_sequences(operands: Operands) -> Bool[Array, " B"]:
    """Whether each sequence is one of the first ones that have one new token each: its query has its own number."""
    expected = jnp.arange(operands.kv_lens.shape[0] + 1, dtype=jnp.int32)
    return jnp.cumsum(operands.cu_q_lens != expected)[1:] == 0
