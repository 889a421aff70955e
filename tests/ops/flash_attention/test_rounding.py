"""Rounding to the working dtype takes place even where the compiler removes conversions."""

import dataclasses

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from attn_tune.ops.fields.rounding import round_to
from attn_tune.ops.flash_attention.inputs import make_inputs
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.flash_attention.reference import baseline, reference

DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def every_size():
    """Float32 of all binades, both signs, ties and their neighbours, zeros, infinities and NaN."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint32)
    ties = (bits & np.uint32(0xFFFF0000)) | np.uint32(0x8000)
    halves = (bits & np.uint32(0xFFFFE000)) | np.uint32(0x1000)
    # The subnormal numbers of float16, the places between them, and what rounds up to the first normal one.
    small = np.arange(-5000, 5000, dtype=np.float32) * np.float32(2.0**-26)
    exact = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 65504, 65520, 65519.99], np.float32)
    drawn = np.concatenate([bits, ties, halves]).view(np.float32)
    return np.concatenate([drawn, small, exact])


@pytest.mark.parametrize("name", DTYPES)
def test_rounding_equals_a_conversion(name):
    x = every_size()
    if name == "bfloat16":
        # Subnormal numbers of float32 are zero to XLA.
        x = np.where(np.abs(x) < np.finfo(np.float32).tiny, 0.0, x)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(DTYPES[name]).astype(np.float32)
    found = np.asarray(jax.jit(round_to, static_argnums=1)(x, jnp.dtype(name)))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)


def test_cotangents_are_rounded_and_wide_dtypes_left_alone():
    x = jnp.float32(1.0)
    _, pull = jax.vjp(lambda y: round_to(y, jnp.dtype("bfloat16")), x)
    assert pull(jnp.float32(1.0 + 2**-9))[0] == 1.0
    assert round_to(jnp.float32(0.1), jnp.dtype("float32")) == jnp.float32(0.1)


def narrowings(jaxpr):
    """Yields the equation that makes each float32 value that is converted to bfloat16, or None for an input."""
    made_by = {}
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            for part in value if isinstance(value, tuple) else (value,):
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield from narrowings(inner)
        made_by |= dict.fromkeys(map(id, equation.outvars), equation)
        if equation.primitive.name == "convert_element_type":
            before, after = (v.aval.dtype for v in (equation.invars[0], equation.outvars[0]))
            if before == jnp.float32 and after == jnp.bfloat16:
                yield made_by.get(id(equation.invars[0]))


PROBLEM = Problem(
    batch=1, q_len=32, kv_len=32, num_q_heads=1, num_kv_heads=1, head_dim=16, v_head_dim=16,
    scale=0.25, causal=True, dtype="bfloat16", logits_dtype="bfloat16",
)  # fmt: skip


def test_inputs_are_rounded_before_they_are_converted():
    """Else the reference might see other operands than the kernel, and ``delta`` an output that was never stored."""
    found = list(narrowings(jax.make_jaxpr(lambda: make_inputs(PROBLEM, "bwd", 0))().jaxpr))
    assert len(found) >= 5
    assert all("reduce_precision" in str(equation) for equation in found)


def test_delta_is_made_of_what_is_stored():
    """Of large arrays, drawn in 16 bits, too: a CPU has no such arithmetic, and XLA keeps the wider value."""
    p = dataclasses.replace(PROBLEM, q_len=600, kv_len=600, num_q_heads=7, num_kv_heads=7, head_dim=256, v_head_dim=256)
    inputs = jax.jit(lambda: make_inputs(p, "bwd", 0))()
    assert inputs.dout.size > 2**20
    out, dout = (x.astype(jnp.float32) for x in (inputs.residuals.out, inputs.dout))
    exact = jnp.einsum("btnv,btnv->bnt", out, dout, precision="highest")
    np.testing.assert_allclose(inputs.delta, exact, rtol=0, atol=1e-4)


def test_the_baseline_rounds_logits_and_their_gradients():
    inputs = make_inputs(PROBLEM, "bwd", 0)
    text = {
        name: str(jax.make_jaxpr(lambda x, f=f: f(PROBLEM, "bwd", x))(inputs))
        for name, f in (("baseline", baseline), ("reference", reference))
    }
    # Logits, their cotangent (a conversion's is rounded too), and the gradient of the product.
    assert text["baseline"].count("reduce_precision") >= 3
    assert "reduce_precision" not in text["reference"]
