"""The XLA kernel of ``native_sparse_attention`` and the op's reference against numpy, outputs and gradients."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_tune.kernels.native_sparse_attention.xla.backward import backward
from attn_tune.kernels.native_sparse_attention.xla.config import Config
from attn_tune.kernels.native_sparse_attention.xla.forward import forward
from attn_tune.ops.native_sparse_attention.features import samples
from attn_tune.ops.native_sparse_attention.inputs import make_inputs
from attn_tune.ops.native_sparse_attention.operands import BackwardInputs, Residuals
from attn_tune.ops.native_sparse_attention.reference import reference
from tests.kernels.native_sparse_attention.oracle import answers, distance

CASES = (("edges", 8), ("longer_keys", 4096), ("longer_queries", 4), ("everything", 16))
MOST = 2e-5


@functools.cache
def case(name):
    """Problem, inputs of the backward, and the answers of numpy; in float32, so that little is rounded."""
    problem = dataclasses.replace(samples()[name], dtype="float32")
    operands = jax.jit(functools.partial(make_inputs, problem, "fwd"))(1)
    rng = np.random.default_rng(0)
    dout = rng.standard_normal((*operands.q.shape[:3], problem.v_head_dim)).astype(np.float32)
    dlse = rng.standard_normal(operands.q.shape[:3]).astype(np.float32)
    exact = answers(problem, operands, dout, dlse)
    delta = np.where(np.isneginf(exact["lse"]), 0.0, (dout * exact["out"]).sum(-1) - dlse)
    saved = Residuals(*(jnp.asarray(exact[x], jnp.float32) for x in ("out", "lse")))
    return problem, BackwardInputs(operands, saved, jnp.asarray(dout), jnp.asarray(delta, jnp.float32)), exact


@pytest.mark.parametrize(("name", "rows"), CASES)
def test_outputs_and_gradients_of_selected_blocks_are_those_of_numpy(name, rows):
    problem, inputs, exact = case(name)

    @jax.jit
    def found(inputs):
        config = Config(rows=rows)
        ours = forward(problem, config, inputs.operands) | backward(problem, config, inputs)
        plain = reference(problem, "fwd", inputs.operands) | reference(problem, "bwd", inputs)
        return ours, plain

    for outputs in found(inputs):
        assert outputs.keys() == exact.keys()
        errors = {x: distance(outputs[x], exact[x]) for x in exact}
        assert max(errors.values()) <= MOST, errors
    assert np.isneginf(exact["lse"]).any()


def test_blocks_that_no_query_names_are_not_read_and_have_no_gradient():
    problem, inputs, _ = case("edges")
    operands = inputs.operands
    # The first block alone is named.
    poisoned = {x: getattr(operands, x).at[:, problem.block_size :].set(jnp.nan) for x in ("k", "v")}
    given = inputs._replace(operands=operands._replace(indices=jnp.zeros_like(operands.indices), **poisoned))
    config = Config(rows=8)
    assert np.isfinite(forward(problem, config, given.operands)["out"]).all()
    gradients = backward(problem, config, given)
    assert np.isfinite(gradients["dq"]).all()
    for name in ("dk", "dv"):
        assert not np.asarray(gradients[name][:, problem.block_size :]).any()
