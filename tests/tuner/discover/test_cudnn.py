"""Reads cuDNN's custom calls: those of this package's kernel, which are XLA's as those of JAX are."""

import jax
import jax.numpy as jnp
import pytest

from attn_tune.kernels.lang.libraries.cudnn_calls import (
    Settings,
    backward_call,
    forward_call,
)
from attn_tune.tuner.discover.calls import find_calls
from attn_tune.tuner.discover.hlo import read_hlo
from attn_tune.tuner.discover.stablehlo import read_stablehlo

Q = jax.ShapeDtypeStruct((2, 64, 4, 32), jnp.bfloat16)
KV = jax.ShapeDtypeStruct((2, 64, 2, 32), jnp.bfloat16)
BIAS = jax.ShapeDtypeStruct((1, 4, 64, 64), jnp.bfloat16)
BASE = "b=2 t=64 s=64 n=4 k=2 h=32 v=32 dtype=bfloat16"
CASES = {
    "plain": (None, Settings(scale=1.0), BASE),
    "window": (None, Settings(scale=1.0, causal=True, window=8), f"{BASE} causal=1 left=7"),
    "bias": (BIAS, Settings(scale=1.0), f"{BASE} bias=1nts"),
    "padded": (None, Settings(scale=1.0, causal=True, padded=True), f"{BASE} causal=1 seg=1 len=1"),
}


@pytest.mark.parametrize("name", CASES)
def test_both_directions_of_a_cudnn_call_are_read(name):
    bias, settings, rest = CASES[name]

    def step(q, k, v, dout, *bias):
        one = bias[0] if bias else None
        lengths = jnp.array([9, 64], jnp.int32) if settings.padded else None
        out, lse = forward_call(q, k, v, one, lengths, settings)
        return backward_call(q, k, v, one, lengths, out, lse, dout, settings)

    arguments = (Q, KV, KV, Q, *(() if bias is None else (bias,)))
    program = jax.jit(step).trace(*arguments).lower(lowering_platforms=("cuda",))
    forms = (
        read_stablehlo(program.as_text().encode(), "test"),
        read_hlo(program.as_text(dialect="hlo"), "test"),
    )
    for graph in forms:
        found = find_calls(graph)
        assert not found.unread
        assert {(c.direction, c.signature.text, c.found_as) for c in found.calls} == {
            (d, f"flash_attention/v1 {rest}", "cuDNN") for d in ("fwd", "bwd")
        }


def test_a_custom_call_without_a_signature_is_listed():
    def paged(q):
        shape = jax.ShapeDtypeStruct(q.shape, q.dtype)
        return jax.ffi.ffi_call("__cudnn$fmhaSoftmaxF8", shape, custom_call_api_version=2)(q)

    def other(q):
        shape = jax.ShapeDtypeStruct(q.shape, q.dtype)
        return jax.ffi.ffi_call("my_flash_attention", shape)(q)

    for function, reason in ((paged, "variant"), (other, "operands do not say")):
        text = jax.jit(function).lower(Q).as_text()
        (unread,) = find_calls(read_stablehlo(text.encode(), "test")).unread
        assert reason in unread.reason
