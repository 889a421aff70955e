"""Sharded calls on eight virtual CPU devices, in a process of their own: the device count is fixed at start."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from attn_tune.api.flash_attention import flash_attention
from attn_tune.schema.errors import UnsupportedError
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
        ("twice", "UsageError: in_specs[0] names the mesh axis 'data' twice"),
        ("sharding", "UsageError: in_specs[0] must be a jax.sharding.PartitionSpec or None, got NamedSharding"),
        ("divide", "UsageError: key/value heads (2) cannot be split 4 ways"),
        ("out", "UsageError: out_specs must be that of the operands"),
    ],
)
def test_specs_that_cannot_work_are_refused_in_words(results, name, words):
    assert results[name].startswith(words)


def test_a_shard_map_that_checks_types_has_the_same_kernels_of_a_tpu(monkeypatch):
    monkeypatch.setenv("ATTN_TUNE_DEVICE_AS", "tpu-v6e")
    checked, plain = json.loads(run_with_devices(2, "-m", "tests.api.tpu_in_shard_map").splitlines()[-1])
    assert checked == plain
    assert min(plain) > 0


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


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_length_is_whole_along_a_mesh_axis_of_size_one(kind, caplog):
    mesh = jax.make_mesh((1, 1, 1), ("data", "seq", "model"), axis_types=(kind,) * 3)
    x = jax.random.normal(jax.random.key(0), (2, 16, 1, 8))
    want = flash_attention(x, x, x, causal=True)
    specs = {}
    if kind is AxisType.Explicit:
        x = jax.device_put(x, NamedSharding(mesh, P("data", "seq")))
    else:
        cut = (P("data", "seq"), P(("data", "model")), P("data"))
        specs = {"mesh": mesh, "in_specs": cut, "out_specs": P("data", "seq")}
    np.testing.assert_array_equal(jax.jit(lambda x: flash_attention(x, x, x, causal=True, **specs))(x), want)
    assert not caplog.messages


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (4, 4), (2, 1)])
@pytest.mark.parametrize("cut", [(P("data", None, "model"), P("data")), (P(), P("data", None, "model"))])
def test_heads_and_key_heads_may_differ_by_a_mesh_axis_of_size_one(heads, kv_heads, cut):
    mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    q, *kv = (jax.random.normal(jax.random.key(i), (2, 16, n, 8)) for i, n in enumerate((heads, kv_heads, kv_heads)))

    def total(*arrays, **how):
        return (flash_attention(*arrays, causal=True, **how) ** 2).sum()

    want = jax.value_and_grad(total, (0, 1, 2))(q, *kv)
    got = jax.value_and_grad(lambda *x: total(*x, mesh=mesh, in_specs=(cut[0], cut[1], cut[1])), (0, 1, 2))(q, *kv)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, want)


@pytest.mark.parametrize("shared", ["sinks", "bias", "key heads"])
def test_arrays_that_devices_share_in_two_shard_maps_are_refused(shared):
    # The gradient of sinks was that of one shard of the outer one.
    mesh = jax.sharding.AbstractMesh((2, 2), ("b", "h"), axis_types=(AxisType.Explicit,) * 2)

    def array(*shape, spec):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))

    def shape_of(*arrays, names=()):
        def local(q, k, v, *more):
            return flash_attention(q, k, v, **dict(zip(names, more, strict=True)))

        specs = (P("b"),) * 3 + (P(),) * len(names)
        call = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P("b"), axis_names={"b"})
        with jax.sharding.use_abstract_mesh(mesh):
            return jax.eval_shape(call, *arrays).shape

    own, one_head = (array(4, 8, 4, 8, spec=P("b", None, "h")),) * 3, (array(4, 8, 1, 8, spec=P("b")),) * 2
    assert shape_of(*own) == (4, 8, 4, 8)
    calls = {
        "sinks": lambda: shape_of(*own, array(4, spec=P("h")), names=["softmax_aux"]),
        "bias": lambda: shape_of(*own, array(1, 1, 8, 8, spec=P()), names=["bias"]),
        "key heads": lambda: shape_of(own[0], *one_head),
    }
    named = {"key heads": "key and value"}.get(shared, shared)
    with pytest.raises(UnsupportedError, match=rf"share {named}, .* over b that leaves out explicit axes: name h in"):
        calls[shared]()
