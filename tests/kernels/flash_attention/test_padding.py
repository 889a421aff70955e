"""NaN and infinities behind the lengths of a batch never leak: neither forward nor backward, in no kernel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_tune.api.attention import attention
from attn_tune.api.flash_attention import flash_attention
from attn_tune.kernels.flash_attention._splash.arrays import prepare as splash_arrays
from attn_tune.kernels.flash_attention._splash.schedule import Schedule
from attn_tune.kernels.flash_attention.cudnn import kernel as cudnn
from attn_tune.kernels.flash_attention.pallas_tpu_flash.arrays import prepare as tpu_arrays
from attn_tune.kernels.flash_attention.pallas_tpu_flash.frame import Frame
from attn_tune.ops.flash_attention.operands import BackwardInputs, Operands, Residuals
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.masks.mask_info import MaskInfo

B, T, S, N, K, H = 3, 6, 11, 4, 2, 8
# Of the last entry nothing counts.
KV_LENGTHS, Q_LENGTHS = np.array([4, 11, 0], np.int32), np.array([6, 2, 0], np.int32)
HIDDEN_KEYS = (np.arange(S) >= KV_LENGTHS[:, None])[..., None, None]


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32))


Q, KEYS, V, DOUT = (
    draw(1, B, T, N, H),
    draw(2, B, S, K, H),
    draw(3, B, S, K, H),
    draw(4, B, T, N, H),
)
BIAS, SINKS = draw(5, 1, N, 1, S), draw(6, N, 2)


def flash(mask, **arguments):
    return lambda q, k, v, bias: flash_attention(q, k, v, bias, mask_info=mask, return_lse=True, **arguments)


OPS = {
    "flash": flash,
    "flash with all": lambda mask: flash(mask, softmax_aux=SINKS, logits_soft_cap=2.0, causal=True, dropout_prob=0.2),
    "unnormalised": lambda mask: flash(mask, normalize_output=False),
    "small chunks": lambda mask: flash(mask, platform="xla", cfg=_small_chunks()),
    "dense": lambda mask: lambda *x: attention(*x, mask_info=mask, dtype=jnp.float32),
}


def _small_chunks():
    from attn_tune.kernels.lang.xla.chunks import BackwardConfig, ForwardConfig

    chunks = {"chunk_q": 4, "chunk_k": 4}
    return {"fwd": ForwardConfig(**chunks), "bwd": BackwardConfig(**chunks)}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("q_lengths", [None, Q_LENGTHS], ids=["keys", "both sides"])
def test_values_in_the_padding_change_nothing(op, q_lengths):
    call = OPS[op](MaskInfo.from_lengths(KV_LENGTHS, q_lengths, q_len=T, kv_len=S))
    hidden_rows = jnp.zeros((B, T, 1, 1), bool)
    if q_lengths is not None:
        hidden_rows = (jnp.arange(T) >= q_lengths[:, None])[..., None, None]

    @jax.jit
    def outputs_and_gradients(q, k, v, dout):
        outputs, pull = jax.vjp(call, q, k, v, BIAS)
        return outputs, pull((dout, jnp.zeros_like(outputs[1])))

    want = outputs_and_gradients(Q, KEYS, V, DOUT)
    for garbage in (jnp.nan, jnp.inf):
        got = outputs_and_gradients(
            jnp.where(hidden_rows, garbage, Q),
            jnp.where(HIDDEN_KEYS, garbage, KEYS),
            jnp.where(HIDDEN_KEYS, -garbage, V),
            jnp.where(hidden_rows, garbage, DOUT),
        )
        jax.tree.map(np.testing.assert_array_equal, got, want)
    dq, dk, dv, dbias = got[1]
    assert all(jnp.isfinite(x).all() for x in got[1])
    for grad, hidden in ((dq, hidden_rows), (dk, HIDDEN_KEYS), (dv, HIDDEN_KEYS)):
        assert not jnp.where(hidden, grad, 0).any()
        assert grad.any()
    assert dbias.any()


def test_lengths_of_a_mask_without_ids_hide_nothing():
    got = flash_attention(Q, KEYS, V, mask_info=MaskInfo(kv_lengths=KV_LENGTHS))
    np.testing.assert_array_equal(got, flash_attention(Q, KEYS, V))


# Inputs of a library's kernel, which may multiply the values that it hides.
WIDE = 64
LARGE = Problem(
    batch=B, q_len=T, kv_len=S, num_q_heads=N, num_kv_heads=K, head_dim=WIDE, v_head_dim=WIDE, dtype="bfloat16",
    scale=0.125, has_segments=True, has_lengths=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def spoilt():
    """Operands with NaN in hidden keys and values."""
    return Operands(
        q=draw(1, B, T, N, WIDE).astype(jnp.bfloat16),
        k=jnp.where(HIDDEN_KEYS, jnp.nan, draw(2, B, S, K, WIDE)).astype(jnp.bfloat16),
        v=jnp.where(HIDDEN_KEYS, jnp.nan, draw(3, B, S, K, WIDE)).astype(jnp.bfloat16),
        q_segments=jnp.zeros((B, T), jnp.int32),
        kv_segments=jnp.where(HIDDEN_KEYS[..., 0, 0], -2, 0),
        kv_lengths=jnp.asarray(KV_LENGTHS),
    )


class Asked(Exception):
    """Ends a call where a launch would begin; holds what it was given."""


def _given_to(monkeypatch, module, name, call):
    def launch(*arguments, **_):
        raise Asked(*arguments)

    monkeypatch.setattr(module, name, launch)
    with pytest.raises(Asked) as caught:
        call()
    return caught.value.args


def test_cudnn_is_given_zeros(monkeypatch, spoilt):
    out, rows = jnp.zeros((B, T, N, WIDE), jnp.bfloat16), jnp.zeros((B, N, T))
    inputs = BackwardInputs(spoilt, Residuals(out, rows), out, rows)
    for name, call in (
        ("forward_call", lambda: cudnn.forward(LARGE, None, spoilt)),
        ("backward_call", lambda: cudnn.backward(LARGE, None, inputs)),
    ):
        _, k, v, *_ = _given_to(monkeypatch, cudnn, name, call)
        for got, array in ((k, spoilt.k), (v, spoilt.v)):
            np.testing.assert_array_equal(got, jnp.where(HIDDEN_KEYS, 0, array))


def test_the_kernels_for_tpu_are_given_zeros(spoilt):
    splash = splash_arrays(Schedule(problem=LARGE, block_q=128, block_kv=128), spoilt)
    dense = tpu_arrays(Frame(problem=LARGE, block_q=128, block_k=128), spoilt)
    assert all(jnp.isfinite(x).all() for x in (splash.k, splash.v, dense.k, dense.v))
