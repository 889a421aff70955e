"""The backward of ``attention`` is looked up: pinned, packed or given configs run, and the gradients are right."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import attn_tune
from attn_tune.api.attention import attention
from attn_tune.kernels.attention.xla import SPEC, kernel
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.errors import UnsupportedError, UsageError
from tests.kernels.dense import bounds, dense_attention
from tests.ops.known import more_kernels

B, T, S, N, K, H = 2, 5, 7, 4, 2, 8
USED: list = []


@dataclass(frozen=True, kw_only=True)
class Blocked:
    rows: int = 1


def blocked_backward(problem, config, inputs):
    USED.append((config.rows, problem.batch, problem.num_q_heads))
    return kernel.backward(problem, config, inputs)


BLOCKED = KernelSpec(
    op="attention",
    name="blocked",
    backend="xla",
    searches={
        "bwd": Search(
            config=Blocked,
            heuristic=lambda problem, device: Blocked(),
            candidates={"": lambda problem, device: [Blocked()]},
            call=f"{__name__}:blocked_backward",
        )
    },
    unsupported=lambda problem, direction, device: None,
    priority={"cpu": -1},
)


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    more_kernels(monkeypatch, BLOCKED)
    jax.clear_caches()
    USED.clear()


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32))


ARRAYS = draw(1, B, T, N, H), draw(2, B, S, K, H), draw(3, B, S, K, H), draw(4, 1, N, T, S)
SINKS, PULL = draw(5, N), draw(7, B, T, N, H)


def loss(q, k, v, bias, sinks, **how):
    out, weights = attention(q, k, v, bias, softmax_aux=sinks, causal=True, dtype=jnp.float32, **how)
    return jnp.sum(jnp.sin(out) * PULL) + jnp.sum(jnp.cos(weights))


def plain(q, k, v, bias, sinks):
    how = {"bias": bias, "sinks": sinks, "visible": bounds(T, S, causal=True)}
    out = dense_attention(q, k, v, **how)[0]
    # The output for values that are unit vectors.
    units = jnp.broadcast_to(jnp.eye(S)[:, None], (B, S, K, S))
    weights = dense_attention(q, k, units, **how)[0].swapaxes(1, 2)
    return jnp.sum(jnp.sin(out) * PULL) + jnp.sum(jnp.cos(weights))


def gradients(function, **how):
    return jax.jit(jax.grad(lambda *x: function(*x, **how), (0, 1, 2, 3, 4)))(*ARRAYS, SINKS)


@functools.cache
def plain_gradients():
    return tuple(map(np.asarray, gradients(plain)))


def assert_right(got):
    for g, w in zip(got, plain_gradients(), strict=True):
        np.testing.assert_allclose(g, w, atol=3e-5, rtol=3e-5)


def test_a_pinned_backward_config_makes_the_gradients():
    with attn_tune.use_config("attention", "blocked", Blocked(rows=3), "bwd"):
        assert_right(gradients(loss))
    assert USED == [(3, B, N)]


def test_a_backward_config_of_the_caller_makes_the_gradients():
    assert_right(gradients(loss, cfg={"bwd": Blocked(rows=5)}))
    assert USED == [(5, B, N)]


def test_the_untuned_backward_makes_the_gradients():
    assert_right(gradients(loss))
    assert USED == []


def test_the_backward_can_be_chosen_by_kernel_and_the_forward_stays_free():
    assert_right(gradients(loss, platform={"bwd": "blocked"}))
    assert USED == [(1, B, N)]


def test_an_unknown_kernel_is_refused_with_the_near_name():
    with pytest.raises(UsageError, match=f"kernel of attention.*{SPEC.name}"):
        attention(*ARRAYS, platform="xl")


def test_vmap_folds_a_call_and_its_backward_into_the_batch():
    q = jnp.stack([ARRAYS[0], 2 * ARRAYS[0]])
    one = lambda q, **how: jnp.sum(jnp.sin(attention(q, *ARRAYS[1:3], dtype=jnp.float32, **how)[0]))  # noqa: E731
    got = jax.vmap(jax.grad(lambda q: one(q, cfg={"bwd": Blocked(rows=2)})))(q)
    want = jnp.stack([jax.grad(one)(each) for each in q])
    np.testing.assert_allclose(got, want, atol=2e-5, rtol=2e-5)
    assert (2, 2 * B, N) in USED


def test_dropout_drops_the_same_weights_in_both_directions():
    key, drops = jax.random.key(3), {"dropout_prob": 0.5, "deterministic": False}
    q, k, v, _ = ARRAYS

    def ours(v):
        return attention(q, k, v, None, key, dtype=jnp.float32, **drops)[0]

    weights = attention(q, k, v, None, key, dtype=jnp.float32, **drops)[1]
    shared = jnp.repeat(weights, 1, axis=1).reshape(B, K, N // K, T, S)
    want = jnp.einsum("bkgts,btkgh->bskh", shared, PULL.reshape(B, T, K, N // K, H))
    got = jax.grad(lambda v: jnp.sum(ours(v) * PULL))(v)
    np.testing.assert_allclose(got, want, atol=2e-5)
    mapped = jax.vmap(ours)(jnp.stack([v, v]))
    np.testing.assert_array_equal(mapped[0], mapped[1])


def test_a_mesh_is_refused_with_dropout_and_taken_without():
    mesh = jax.make_mesh((1,), ("data",))
    specs = {"mesh": mesh, "in_specs": (PartitionSpec("data"),) * 3}
    arrays = ARRAYS[:3]
    drops = {"dropout_prob": 0.5, "deterministic": False, "dropout_rng": jax.random.key(0)}
    with pytest.raises(UnsupportedError, match="attention cannot be cut over a mesh with dropout"):
        attention(*arrays, **drops, **specs)
    got = attention(*arrays, dtype=jnp.float32, **specs)
    want = attention(*arrays, dtype=jnp.float32)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), got, want)
