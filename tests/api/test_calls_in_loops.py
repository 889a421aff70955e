"""Calls in a scan over layers, whose operands are slices: the same bits as of one call after another.

XLA moves slices of operands and results into calls of kernels. On an H100 (JAX 0.11.2) that gave two outputs of one
call the same buffer, which no program with the call alone showed.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import attn_tune
from attn_tune.runtime.lookup import dispatch
from attn_tune.schema.device import Device

H200 = Device(platform="cuda", family="sm_90", variant="nvidia-h200")
LAYERS = 3


def arrays(*shapes):
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return [jax.random.normal(k, (LAYERS, *shape), jnp.bfloat16) for k, shape in zip(keys, shapes, strict=True)]


def one_after_another(function, operands):
    made = [function(*(x[i] for x in operands)) for i in range(LAYERS)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *made)


def scanned(function, operands):
    return jax.lax.scan(lambda carry, layer: (carry, function(*layer)), 0, operands)[1]


def assert_alike(function, operands):
    alone = jax.jit(function)
    want = one_after_another(alone, operands)
    for way in (one_after_another, scanned):
        found = jax.jit(functools.partial(way, function))(operands)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(np.float32(a), np.float32(b), rtol=0.02, atol=0.02)


def test_gradients_of_grouped_heads_in_a_scan_are_those_of_single_calls():
    def gradients(q, k, v, dout):
        return jax.vjp(functools.partial(attn_tune.flash_attention, causal=True), q, k, v)[1](dout)

    assert_alike(gradients, arrays((2, 128, 4, 64), (2, 128, 2, 64), (2, 128, 2, 64), (2, 128, 4, 64)))


def test_caches_of_layers_are_filled_in_a_scan_as_by_single_calls():
    lengths = jnp.array([5, 30], jnp.int32)
    table = jnp.array([[0, 1], [2, 3]], jnp.int32)

    def filled(new_k, new_v, k_pages, v_pages):
        cache = attn_tune.paged_append(new_k, new_v, k_pages, v_pages, lengths, table)
        return cache.k_pages, cache.v_pages

    new, pages = (2, 1, 2, 64), (4, 16, 2, 64)
    assert_alike(filled, arrays(new, new, pages, pages))
    # Pages of zeros are one constant to XLA, and become two caches.
    zeros = [jnp.zeros((LAYERS, *pages), jnp.bfloat16)] * 2
    assert_alike(filled, [*arrays(new, new), *zeros])


def test_a_kernel_on_a_gpu_is_behind_barriers_whoever_wrote_it_and_xla_is_not(monkeypatch):
    monkeypatch.setattr(dispatch, "current_device", lambda: H200)
    q = jnp.ones((1, 128, 1, 64), jnp.bfloat16)
    pages = jnp.ones((1, 16, 1, 64), jnp.bfloat16)

    def barriers(function, kernel, *operands):
        return str(jax.make_jaxpr(functools.partial(function, platform=kernel))(*operands)).count(
            "optimization_barrier"
        )

    assert barriers(attn_tune.flash_attention, "triton", q, q, q) == 1
    assert barriers(attn_tune.flash_attention, "xla", q, q, q) == 0
    new, lengths, table = pages[:, :1], jnp.array([3], jnp.int32), jnp.array([[0]], jnp.int32)
    # One for the operands too, since the cache is updated in place.
    assert barriers(attn_tune.paged_append, "triton", new, new, pages, pages, lengths, table) == 2
