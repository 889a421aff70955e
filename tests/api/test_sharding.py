"""Sharded calls on eight virtual CPU devices, in a process of their own: the device count is fixed at start."""

import json

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from attn_tune.api.flash_attention import flash_attention
from tests.several_devices import run_with_devices


@pytest.fixture(scope="module")
def results():
    return json.loads(run_with_devices(8, "-m", "tests.api.sharded_program").splitlines()[-1])


@pytest.mark.parametrize("name", ["everything", "one_kv_head_and_folded_axes", "packed"])
def test_a_sharded_call_equals_a_whole_one_with_gradients_and_dropout(results, name):
    assert results[name] < 5e-5


def test_shards_are_looked_up_by_their_own_shapes(results):
    assert results["local"] == [[1, 2, 1, "1nts"]]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("length", "UnsupportedError: query is sharded along its length"),
        ("head_dim", "UnsupportedError: query is sharded along its head dim"),
        ("kv_heads", "UnsupportedError: query heads are sharded along 'model'"),
        ("mesh_axis", "UsageError: mesh has no axis 'nowhere'"),
        ("divide", "UsageError: key/value heads (2) cannot be split 4 ways"),
        ("out", "UsageError: out_specs must be that of the operands"),
    ],
)
def test_specs_that_cannot_work_are_refused_in_words(results, name, words):
    assert results[name].startswith(words)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_single_head_may_be_sharded_along_a_mesh_axis_of_size_one(kind):
    mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=(kind,) * 2)
    spec, x = P("data", None, "model"), jnp.ones((2, 16, 1, 8))
    if kind is AxisType.Explicit:
        x, specs = jax.device_put(x, NamedSharding(mesh, spec)), {}
    else:
        specs = {"mesh": mesh, "in_specs": (spec,) * 3}

    def total(x):
        return flash_attention(x, x, x, bias=jnp.zeros((1, 1, 16, 16)), causal=True, **specs).sum()

    out, grad = jax.jit(jax.value_and_grad(total))(x)
    assert out == pytest.approx(x.size)
    if kind is AxisType.Explicit:
        assert jax.typeof(grad) == jax.typeof(x)
