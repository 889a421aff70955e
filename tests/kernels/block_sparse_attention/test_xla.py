"""The XLA kernel in chunks that are parts of a block, and that hold several, against a dense float64 attention."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_tune.kernels.block_sparse_attention.xla.backward import backward
from attn_tune.kernels.block_sparse_attention.xla.forward import forward
from attn_tune.kernels.lang.xla.chunks import BackwardConfig, ForwardConfig
from attn_tune.ops.block_sparse_attention.features import samples
from attn_tune.ops.block_sparse_attention.inputs import make_inputs
from attn_tune.ops.block_sparse_attention.operands import BackwardInputs
from attn_tune.ops.block_sparse_attention.reference import as_dense
from attn_tune.ops.flash_attention.operands import Residuals
from tests.kernels.flash_attention.dense_numpy import counted
from tests.kernels.flash_attention.triton_cases import distance
from tests.kernels.flash_attention.triton_oracle import gradients

# What the mask of blocks is to chunks, and what else hides pairs.
CASES = (("of_both", 16, 24), ("everything", 64, 48), ("lengths", 150, 150), ("segments_causal", 48, 100))
MOST = 2e-5


@functools.cache
def case(name):
    """Problem, operands, inputs of the backward, and the answers of numpy; in float32, so that little is rounded."""
    problem = dataclasses.replace(samples()[name], dtype="float32", precision="highest")
    operands = jax.jit(functools.partial(make_inputs, problem, "fwd"))(1)
    blocks = np.asarray(operands.block_mask)
    arrays = {x: np.asarray(y) for x, y in operands._asdict().items() if y is not None}
    arrays |= {"k": counted(operands, operands.k), "v": counted(operands, operands.v)}
    spread = blocks.repeat(problem.mask_block_q, 2)[:, :, : problem.q_len]
    arrays["mask"] = spread.repeat(problem.mask_block_k, 3)[..., : problem.kv_len]
    rng = np.random.default_rng(0)
    dout = rng.standard_normal((problem.batch, problem.q_len, problem.num_q_heads, problem.v_head_dim), np.float32)
    dlse = rng.standard_normal((problem.batch, problem.num_q_heads, problem.q_len), np.float32)
    out, lse, delta, found = gradients(as_dense(problem), arrays, dout, dlse)
    residuals = Residuals(jnp.asarray(out, jnp.float32), jnp.asarray(lse, jnp.float32))
    inputs = BackwardInputs(operands, residuals, jnp.asarray(dout), jnp.asarray(delta, jnp.float32))
    return problem, inputs, found | {"out": out, "lse": lse}


@pytest.mark.parametrize(("name", "rows", "columns"), CASES)
def test_outputs_and_gradients_are_those_of_numpy(name, rows, columns):
    problem, inputs, expected = case(name)
    chunks = {"chunk_q": rows, "chunk_k": columns}
    found = jax.jit(functools.partial(forward, problem, ForwardConfig(**chunks)))(inputs.operands)
    found |= jax.jit(functools.partial(backward, problem, BackwardConfig(**chunks)))(inputs)
    assert found.keys() == expected.keys()
    errors = {x: distance(np.asarray(found[x], np.float64), expected[x]) for x in expected}
    assert max(errors.values()) <= MOST, errors
    assert np.isneginf(expected["lse"]).any()


def test_a_pair_of_chunks_without_a_listed_block_is_not_computed():
    problem, inputs, _ = case("of_both")
    operands = inputs.operands
    nothing = operands._replace(block_mask=jnp.zeros_like(operands.block_mask), v=jnp.full_like(operands.v, jnp.nan))
    found = forward(problem, ForwardConfig(chunk_q=32, chunk_k=32), nothing)
    assert not np.asarray(found["out"]).any()
    assert np.isneginf(found["lse"]).all()
