"""Inputs for these tests, cheap to make: residuals come from the numpy oracle, not from a compiled reference."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from attn_tune.ops.flash_attention.inputs import make_inputs
from attn_tune.ops.flash_attention.operands import BackwardInputs, Operands, Residuals
from attn_tune.ops.flash_attention.problem import Problem
from tests.kernels.flash_attention import dense_numpy

# Compiling takes most of these tests' time, and the code is as right without the expensive passes.
FAST_COMPILE = {
    "xla_llvm_disable_expensive_passes": True,
    "xla_backend_optimization_level": 0,
}


def fast_jit(function):
    """``jax.jit`` with the first two arguments static, compiled quickly."""
    return jax.jit(function, static_argnums=(0, 1), compiler_options=FAST_COMPILE)


def in_float32(p: Problem) -> Problem:
    """The problem in full float32, where nothing but order of summation is left to differ."""
    return dataclasses.replace(p, dtype="float32", logits_dtype="float32", precision="highest")


def backward_inputs(p: Problem, seed: int = 0, dlse: np.ndarray | None = None) -> tuple[Operands, BackwardInputs]:
    """Operands and the backward's inputs, with ``delta`` from the residuals and ``dlse`` (zero when None)."""
    operands = make_inputs(p, "fwd", seed)
    exact = dense_numpy.attention(p, operands)
    out = jnp.asarray(exact["out"].astype(np.float32)).astype(p.dtype)
    dout = np.random.default_rng(seed).standard_normal(out.shape).astype(np.float32)
    dout = jnp.asarray(dout).astype(p.dtype)
    delta = np.einsum("btnv,btnv->bnt", dense_numpy.as_float64(out), dense_numpy.as_float64(dout))
    if dlse is not None:
        delta = delta - dlse
    lse = jnp.asarray(exact["lse"].astype(np.float32))
    inputs = BackwardInputs(operands, Residuals(out, lse), dout, jnp.asarray(delta.astype(np.float32)))
    return operands, inputs


def assert_close(actual, expected, *, relative: float, name: str) -> None:
    """Largest difference at most ``relative`` times the largest expected value; infinities must agree exactly."""
    actual = dense_numpy.as_float64(actual)
    assert actual.shape == expected.shape, name
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(actual[~finite], expected[~finite], err_msg=name)
    assert np.all(np.isfinite(actual[finite])), f"{name} has NaN or infinity"
    scale = np.max(np.abs(expected[finite]), initial=1e-30)
    worst = np.max(np.abs(actual[finite] - expected[finite]), initial=0.0)
    assert worst <= relative * scale, f"{name}: {worst:.3g} on a scale of {scale:.3g}"
