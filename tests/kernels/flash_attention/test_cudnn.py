"""Facts of the cuDNN kernel that need no GPU: its calls, its limits and the arithmetic around it."""

import dataclasses
import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as jax_cudnn

from attn_tune.api.flash_attention import flash_attention
from attn_tune.kernels.flash_attention.cudnn import SPEC, kernel, limits
from attn_tune.kernels.flash_attention.cudnn.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.flash_attention.cudnn.kernel import backward, forward, with_delta
from attn_tune.ops.flash_attention.operands import BackwardInputs, Operands, Residuals
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.runtime.lookup import dispatch
from attn_tune.schema.device import Device

B, T, S, N, K, H = 2, 64, 64, 4, 2, 16
H200 = Device(platform="cuda", family="sm_90", variant="nvidia-h200")


def problem(**changes):
    base = {
        "batch": B,
        "q_len": T,
        "kv_len": S,
        "num_q_heads": N,
        "num_kv_heads": K,
        "head_dim": H,
        "v_head_dim": H,
        "scale": 0.25,
    }
    return Problem(**(base | changes))


def structs(p, bias=None):
    def of(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.dtype(p.dtype))

    q = of(p.batch, p.q_len, p.num_q_heads, p.head_dim)
    k = of(p.batch, p.kv_len, p.num_kv_heads, p.head_dim)
    v = of(p.batch, p.kv_len, p.num_kv_heads, p.v_head_dim)
    return q, k, v, *(() if bias is None else (of(*bias),))


def cuda_text(function, *arguments):
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


def calls(text):
    """Each cuDNN call as (target, its configuration, its layouts and types), in order."""
    found = []
    for line in text.splitlines():
        match = re.search(r"custom_call @(__cudnn\$\w+)\(", line)
        if match:
            config = json.loads(re.search(r'backend_config = "(.*?)", ', line)[1].replace("\\22", '"'))
            shape = re.search(r"operand_layouts = (\[.*?\]), result_layouts = (\[.*?\])}?.* : (\(.*)$", line)
            found.append((match[1], config, shape.groups()))
    return found


@pytest.fixture
def as_on_a_hopper(monkeypatch):
    monkeypatch.setattr(jax_cudnn, "check_cudnn_version", lambda: 91900)
    monkeypatch.setattr(jax_cudnn, "check_compute_capability", lambda capability: True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("changes", "theirs", "bias"),
    [
        ({}, {}, None),
        ({"causal": True}, {"is_causal": True}, None),
        (
            {"causal": True, "window": (9, None)},
            {"is_causal": True, "local_window_size": (9, 0)},
            None,
        ),
        ({"q_len": 32}, {}, None),
        ({"bias_dims": "1nts"}, {}, (1, N, T, S)),
        ({"has_segments": True, "has_lengths": True}, {}, None),
        ({"has_segments": True, "has_lengths": True, "causal": True}, {"is_causal": True}, None),
    ],
)
def test_the_calls_are_those_that_jax_makes(as_on_a_hopper, dtype, changes, theirs, bias):
    p = problem(dtype=dtype, **changes)
    arrays = structs(p, bias)
    lengths = jnp.array([3, S], jnp.int32) if p.has_lengths else None

    def reference(q, k, v, *bias):
        return jax.nn.dot_product_attention(
            q,
            k,
            v,
            *bias,
            scale=p.scale,
            key_value_seq_lengths=lengths,
            implementation="cudnn",
            **theirs,
        )

    def without_gradient(q, k, v, *bias):
        operands = Operands(q, k, v, *bias, kv_lengths=lengths)
        return forward(dataclasses.replace(p, needs_lse=False), ForwardConfig(), operands)["out"]

    def through_the_contract(q, k, v, *bias):
        operands = Operands(q, k, v, *bias, kv_lengths=lengths)
        result = forward(p, ForwardConfig(), operands)
        residuals = Residuals(result["out"], result["lse"])
        inputs = BackwardInputs(operands, residuals, result["out"], jnp.zeros_like(result["lse"]))
        return backward(p, BackwardConfig(), inputs)

    def with_gradient(q, k, v, *bias):
        out, pull = jax.vjp(reference, q, k, v, *bias)
        return pull(out)

    ours, want = (
        calls(cuda_text(through_the_contract, *arrays)),
        calls(cuda_text(with_gradient, *arrays)),
    )
    assert len(want) == 2
    assert ours == want
    ours, want = (calls(cuda_text(call, *arrays)) for call in (without_gradient, reference))
    assert len(want) == 1
    assert ours == want


def test_sinks_rescale_the_output_and_join_the_lse(monkeypatch):
    q, k, v = (jax.random.normal(jax.random.key(i), (1, 8, N, H), jnp.float32) for i in range(3))
    sinks = jax.random.normal(jax.random.key(4), (N,))

    def plain(q, k, v, bias, kv_lengths, settings, *, with_lse):
        assert with_lse
        logits = settings.scale * jnp.einsum("btnh,bsnh->bnts", q, k)
        out = jnp.einsum("bnts,bsnv->btnv", jax.nn.softmax(logits), v)
        return out, jax.nn.logsumexp(logits, axis=-1)

    monkeypatch.setattr("attn_tune.kernels.flash_attention.cudnn.kernel.forward_call", plain)
    # Without the lse nothing could be rescaled, whether anybody else needs it or not.
    p = problem(batch=1, q_len=8, kv_len=8, num_kv_heads=N, has_sinks=True, needs_lse=False)
    got = forward(p, ForwardConfig(), Operands(q, k, v, sinks=sinks))
    logits = p.scale * jnp.einsum("btnh,bsnh->bnts", q, k)
    joined = jnp.concatenate([logits, jnp.broadcast_to(sinks[None, :, None, None], (1, N, 8, 1))], -1)
    weights = jax.nn.softmax(joined)[..., :-1]
    np.testing.assert_allclose(got["out"], jnp.einsum("bnts,bsnv->btnv", weights, v), atol=1e-5)
    np.testing.assert_allclose(got["lse"], jax.nn.logsumexp(joined, axis=-1), atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("dout_scale", [1.0, 1e-3, 0.0])
@pytest.mark.parametrize("dlse_scale", [0.0, 1e-5, 1.0, 30.0, 1e4])
def test_the_delta_cudnn_computes_is_the_given_one(dtype, dout_scale, dlse_scale):
    shape = (2, 16, N, 64)
    out = jax.random.normal(jax.random.key(0), shape).astype(dtype)
    dout = (dout_scale * jax.random.normal(jax.random.key(1), shape)).astype(dtype)
    dlse = dlse_scale * jax.random.normal(jax.random.key(2), (2, N, 16))
    exact = jnp.einsum("btnv,btnv->bnt", out.astype(jnp.float32), dout.astype(jnp.float32))
    inputs = BackwardInputs(None, Residuals(out, None), dout, exact - dlse)
    new_out, new_dout = with_delta(inputs)
    assert (new_out.dtype, new_dout.dtype) == (dtype, dtype)
    seen = jnp.einsum("btnv,btnv->bnt", new_out.astype(jnp.float32), new_dout.astype(jnp.float32))
    # Rounding all of `out` would leave half an eps of a typical product, times the root of their number.
    product = jnp.sqrt(jnp.mean((out * dout).astype(jnp.float32) ** 2)) + jnp.abs(dlse).max() / 64
    np.testing.assert_allclose(seen, inputs.delta, rtol=0, atol=float(jnp.finfo(dtype).eps * product / 2 + 1e-7))
    if dlse_scale == 0:
        np.testing.assert_array_equal(new_out, out)
        np.testing.assert_array_equal(new_dout, dout)
    # dv is what it is without dlse, but for this: rows smaller than the share became the share.
    change = jnp.abs(new_dout.astype(jnp.float32) - dout.astype(jnp.float32)).max()
    share = {jnp.float16: 2**-15, jnp.bfloat16: 2**-40}[dtype]
    assert change <= max(2.02 * share * jnp.abs(dlse).max(), jnp.finfo(dtype).smallest_subnormal)


@pytest.mark.parametrize(
    ("changes", "device", "directions", "word"),
    [
        ({}, dataclasses.replace(H200, family="sm_75"), "fwd bwd", "8.0"),
        ({}, Device(platform="cpu", family="x86_64", variant="cpu-x86_64"), "fwd bwd", "NVIDIA"),
        ({"dtype": "float32"}, H200, "fwd bwd", "bfloat16"),
        ({"head_dim": 20}, H200, "fwd bwd", "head_dim=20"),
        ({"head_dim": 512}, H200, "fwd bwd", "256"),
        ({"head_dim": 192}, dataclasses.replace(H200, family="sm_80"), "fwd bwd", "128"),
        ({"v_head_dim": 8}, dataclasses.replace(H200, family="sm_80"), "fwd bwd", "sm_90"),
        ({"scale": 0.0}, H200, "fwd bwd", "scale=0.0"),
        ({"scale": -0.3}, H200, "fwd bwd", "scale=-0.3"),
        ({"soft_cap": 30.0}, H200, "fwd bwd", "cap"),
        ({"dropout_rate": 0.1}, H200, "fwd bwd", "dropout"),
        ({"logits_dtype": "bfloat16"}, H200, "fwd bwd", "logits"),
        ({"has_segments": True}, H200, "fwd bwd", "segment"),
        ({"has_positions": True}, H200, "fwd bwd", "positions"),
        ({"mask_dims": "b1ts"}, H200, "fwd bwd", "mask"),
        ({"causal": True, "q_len": 32}, H200, "fwd bwd", "top left"),
        ({"window": (3, 3)}, H200, "fwd bwd", "causal edge"),
        ({"bias_dims": "bn1s"}, H200, "fwd bwd", "broadcast"),
        ({"bias_dims": "1nts", "q_len": 33}, H200, "fwd bwd", "even"),
        ({"bias_dims": "bnts"}, H200, "bwd", "gradient"),
        ({"bias_dims": "11ts"}, H200, "bwd", "gradient"),
        ({"q_len": 1, "kv_len": 1}, H200, "bwd", "one query and one key"),
        ({}, H200, "", ""),
        ({"causal": True, "window": (5, None)}, H200, "", ""),
        ({"causal": True, "q_len": 1}, H200, "", ""),
        ({"bias_dims": "1nts"}, H200, "", ""),
        ({"head_dim": 256, "v_head_dim": 256, "has_sinks": True}, H200, "", ""),
    ],
)
def test_limits_are_reasons_in_words(monkeypatch, changes, device, directions, word):
    monkeypatch.setattr(limits, "cudnn_version", lambda: (9, 19, 0))
    for direction in ("fwd", "bwd"):
        reason = SPEC.unsupported(problem(**changes), direction, device)
        if direction in directions.split():
            assert reason is not None
            assert word in reason
        else:
            assert reason is None


def test_a_machine_without_cudnn_gets_the_reason(monkeypatch):
    monkeypatch.setattr(limits, "cudnn_version", lambda: None)
    assert "not found" in SPEC.unsupported(problem(), "fwd", H200)


def test_cudnn_lowers_under_a_shard_map_that_checks_types(monkeypatch):
    monkeypatch.setattr(limits, "cudnn_version", lambda: (9, 19, 0))
    monkeypatch.setattr(dispatch, "current_device", lambda: H200)
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("x")

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec)
    def attend(q, k, v):
        return flash_attention(q, k, v, causal=True, platform="cudnn")

    def loss(*arrays):
        return attend(*arrays).astype(jnp.float32).sum()

    q = jax.ShapeDtypeStruct((2, 64, 4, 64), jnp.bfloat16)
    targets = [target for target, *_ in calls(cuda_text(jax.grad(loss, (0, 1, 2)), q, q, q))]
    assert targets == ["__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"]


def test_what_cudnn_leaves_unwritten_behind_lengths_is_zero(monkeypatch):
    p = problem(has_lengths=True, has_segments=True, needs_lse=True)
    lengths = jnp.array([0, 40], jnp.int32)
    ones = {"q": (B, T, N, H), "k": (B, S, K, H), "v": (B, S, K, H)}
    operands = Operands(**{name: jnp.ones(shape, p.dtype) for name, shape in ones.items()}, kv_lengths=lengths)

    def unwritten(x):
        return x.at[0].set(jnp.nan)

    def gradient(shape):
        behind = jnp.arange(shape[1])[None] >= lengths[:, None]
        return jnp.where(behind[:, :, None, None], jnp.nan, jnp.ones(shape, p.dtype))

    def forward_call(q, k, v, bias, kv_lengths, settings, *, with_lse):
        return unwritten(jnp.ones((B, T, N, H), p.dtype)), jnp.ones((B, N, T)) if with_lse else None

    def backward_call(*given):
        return {"dq": jnp.ones((B, T, N, H), p.dtype), "dk": gradient(ones["k"]), "dv": gradient(ones["v"])}

    monkeypatch.setattr(kernel, "forward_call", forward_call)
    monkeypatch.setattr(kernel, "backward_call", backward_call)
    found = forward(p, ForwardConfig(), operands)
    assert (found["out"][0] == 0).all()
    assert (found["out"][1] == 1).all()
    assert jnp.isneginf(found["lse"][0]).all()
    alone = forward(dataclasses.replace(p, needs_lse=False), ForwardConfig(), operands)
    assert (alone["out"] == found["out"]).all()
    residuals = Residuals(out=found["out"], lse=found["lse"])
    grads = backward(p, BackwardConfig(), BackwardInputs(operands, residuals, found["out"], jnp.zeros((B, N, T))))
    for name in ("dk", "dv"):
        assert (grads[name][0] == 0).all()
        assert (grads[name][1, :40] == 1).all()
        assert (grads[name][1, 40:] == 0).all()
