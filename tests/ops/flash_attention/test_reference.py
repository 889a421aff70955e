import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_tune.ops.flash_attention import reference as reference_module
from attn_tune.ops.flash_attention.features import samples
from attn_tune.ops.flash_attention.inputs import make_inputs
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.flash_attention.reference import baseline, reference
from attn_tune.ops.masks.mask_info import KV_PADDING, Q_PADDING
from tests.kernels.flash_attention import dense_numpy
from tests.kernels.flash_attention.dense_inputs import (
    assert_close,
    backward_inputs,
    fast_jit,
    in_float32,
)
from tests.kernels.flash_attention.judged import compare

PROBLEMS = samples()
GRADIENTS = ("dq", "dk", "dv", "dbias")


def check_against_oracle(p: Problem, *, relative: float, dlse: np.ndarray | None = None) -> None:
    operands, inputs = backward_inputs(p, dlse=dlse)
    outputs = fast_jit(reference)(p, "fwd", operands)
    outputs |= fast_jit(reference)(p, "bwd", inputs)
    expected = dense_numpy.attention(p, operands) | dense_numpy.gradients(p, inputs, dlse)
    for name, x in outputs.items():
        assert_close(x, expected[name], relative=relative, name=name)
    assert set(outputs) >= {"out", "lse", "dq", "dk", "dv"}
    assert ("dbias" in outputs) == (p.bias_dims is not None)


@pytest.mark.parametrize("name", ["causal_longer_queries", "sinks_window", "gqa_bias_cap", "bias_keys", "mask_rows"])
def test_reference_matches_the_oracle_in_float32(name):
    check_against_oracle(in_float32(PROBLEMS[name]), relative=1e-5)


def test_reference_is_float64_where_it_can_be():
    with jax.enable_x64(True):
        # delta is a float32 by contract, so the gradients see its rounding and nothing else.
        p = PROBLEMS["everything"]
        operands, inputs = backward_inputs(p)
        outputs = fast_jit(reference)(p, "fwd", operands)
        assert outputs["out"].dtype == outputs["lse"].dtype == jnp.float64
        expected = dense_numpy.attention(p, operands)
        for name in ("out", "lse"):
            assert_close(outputs[name], expected[name], relative=1e-12, name=name)
        grads = fast_jit(reference)(p, "bwd", inputs)
        for name, expected in dense_numpy.gradients(p, inputs).items():
            assert_close(grads[name], expected, relative=2e-7, name=name)


def test_delta_carries_the_cotangent_of_lse():
    p = in_float32(PROBLEMS["causal"])
    dlse = np.random.default_rng(5).standard_normal((p.batch, p.num_q_heads, p.q_len))
    check_against_oracle(p, relative=1e-5, dlse=dlse)


def test_gradients_are_those_of_the_given_delta():
    # A row that sees three keys, where the error of the rounded output is 28 times that of rounding the gradient.
    p = Problem(
        batch=1,
        q_len=512,
        kv_len=256,
        num_q_heads=4,
        num_kv_heads=1,
        head_dim=128,
        v_head_dim=128,
        scale=128**-0.5,
        causal=True,
    )
    inputs = jax.jit(make_inputs, static_argnums=(0, 1))(p, "bwd", 1009)
    out = dense_numpy.attention(p, inputs.operands)["out"]
    exact = np.einsum("btnv,btnv->bnt", out, dense_numpy.as_float64(inputs.dout))
    expected = dense_numpy.gradients(p, inputs, exact - dense_numpy.as_float64(inputs.delta))
    answers = [fast_jit(answer)(p, "bwd", inputs) for answer in (reference, baseline)]
    for name, x in answers[0].items():
        assert_close(x, expected[name], relative=1e-5, name=name)
    rounded = {name: jnp.asarray(x, jnp.float32).astype(p.dtype) for name, x in expected.items()}
    assert all(error.ratio <= 1 for error in compare(rounded, *answers))


def test_row_blocks_do_not_show(monkeypatch):
    p = in_float32(PROBLEMS["everything"])
    assert p.q_len % 32
    monkeypatch.setattr(reference_module, "BLOCK_ELEMENTS", 32 * p.kv_len)
    check_against_oracle(p, relative=1e-5)


def test_the_oracle_matches_finite_differences():
    p = PROBLEMS["everything"]
    operands, inputs = backward_inputs(p)
    dlse = np.random.default_rng(1).standard_normal((p.batch, p.num_q_heads, p.q_len))
    dout = dense_numpy.as_float64(inputs.dout)
    grads = dense_numpy.gradients(p, inputs, dlse)

    def loss(**changed):
        a = dense_numpy.attention(p, operands._replace(**changed))
        seen = np.isfinite(a["lse"])
        return np.sum(a["out"] * dout) + np.sum(a["lse"][seen] * dlse[seen])

    rng = np.random.default_rng(2)
    for name in ("q", "k", "v", "bias"):
        x = dense_numpy.as_float64(getattr(operands, name))
        direction = rng.standard_normal(x.shape)
        step = 1e-5
        slope = loss(**{name: x + step * direction}) - loss(**{name: x - step * direction})
        expected = np.sum(grads["d" + name] * direction)
        assert slope / (2 * step) == pytest.approx(expected, rel=1e-6), name


@pytest.mark.parametrize(("name", "error"), [("gqa_bias_cap", 3e-2), ("float16", 3e-3)])
def test_baseline_keeps_the_contract_and_errs_like_its_dtype(name, error):
    p = PROBLEMS[name]
    operands, inputs = backward_inputs(p)
    outputs = fast_jit(baseline)(p, "fwd", operands) | fast_jit(baseline)(p, "bwd", inputs)
    expected = dense_numpy.attention(p, operands) | dense_numpy.gradients(p, inputs)
    for key, x in outputs.items():
        assert x.dtype == (jnp.float32 if key == "lse" else p.dtype), key
        assert_close(x, expected[key], relative=error, name=key)
        rounding_alone = float(jnp.finfo(x.dtype).eps) / 64
        worst = np.max(np.abs(dense_numpy.as_float64(x) - expected[key]))
        assert key == "lse" or worst > rounding_alone * np.max(np.abs(expected[key])), key


def test_inputs_are_repeatable_traceable_and_agree_with_their_residuals():
    p = PROBLEMS["dropout_gqa"]
    eager, again = make_inputs(p, "bwd", 3), make_inputs(p, "bwd", 3)
    other = make_inputs(p, "fwd", 4)
    jax.tree.map(np.testing.assert_array_equal, eager, again)
    assert not np.array_equal(eager.operands.q, other.q)
    assert int(eager.operands.dropout[0]) != int(other.dropout[0])
    traced = jax.eval_shape(lambda seed: make_inputs(p, "bwd", seed), 3)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), traced) == jax.tree.map(lambda x: (x.shape, x.dtype), eager)
    exact = dense_numpy.attention(p, eager.operands)
    assert_close(eager.residuals.lse, exact["lse"], relative=1e-5, name="lse")
    assert_close(eager.residuals.out, exact["out"], relative=2**-8, name="out")
    rowsum = np.einsum(
        "btnv,btnv->bnt",
        dense_numpy.as_float64(eager.residuals.out),
        dense_numpy.as_float64(eager.dout),
    )
    assert_close(eager.delta, rowsum, relative=1e-5, name="delta")


@pytest.mark.parametrize("name", ["segments", "segments_longer_keys", "positions_causal"])
def test_documents_are_packed_and_padded(name):
    p = PROBLEMS[name]
    o = make_inputs(p, "fwd", 0)
    q_ids, kv_ids = np.asarray(o.q_segments), np.asarray(o.kv_segments)
    assert np.all(q_ids[:, -1] == Q_PADDING)
    assert np.all(kv_ids[:, -1] == KV_PADDING)
    real = kv_ids[0][kv_ids[0] != KV_PADDING]
    assert np.all(np.diff(real) >= 0)
    assert len(set(real)) > 1
    if o.kv_positions is not None:
        positions = np.asarray(o.kv_positions)
        inside = (np.diff(kv_ids, axis=1) == 0) & (kv_ids[:, 1:] != KV_PADDING)
        assert np.all(np.diff(positions, axis=1)[inside] == 1)
    common = min(p.q_len, p.kv_len)
    live = q_ids[:, -common:] != Q_PADDING
    np.testing.assert_array_equal(q_ids[:, -common:][live], kv_ids[:, -common:][live])
    if p.q_len == p.kv_len:
        assert 0.1 < dense_numpy.visible(p, o).mean() < 0.9


def test_compare_is_exact_about_shapes_dtypes_and_infinities():
    ref = {"lse": jnp.array([[[1.0, -jnp.inf, 2.0]]], jnp.float32)}
    plain = {"lse": ref["lse"] + 1e-6}
    good = compare({"lse": ref["lse"] + 1e-6}, ref, plain)
    assert good[0].ratio <= 1
    for wrong in (
        ref["lse"].at[0, 0, 1].set(-1e30),
        ref["lse"].at[0, 0, 0].set(jnp.nan),
        ref["lse"].at[0, 0, 0].set(-jnp.inf),
        ref["lse"].at[0, 0, 1].set(jnp.inf),
        ref["lse"].astype(jnp.bfloat16),
        ref["lse"][..., :2],
    ):
        (error,) = compare({"lse": wrong}, ref, plain)
        assert error.ratio == np.inf
    with pytest.raises(KeyError):
        compare({"dq": ref["lse"]}, ref, plain)
