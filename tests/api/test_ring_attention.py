"""``ring_attention`` beside dense attention over whole sequences, on eight devices; layouts, transfers, refusals."""

import functools
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune
from attn_tune.api.context_parallel.hops import Ring, band_of
from attn_tune.api.context_parallel.layouts import Layout
from attn_tune.api.context_parallel.ring_attention import strategy_of
from attn_tune.ops.masks.mask_info import MaskInfo
from attn_tune.schema.errors import UnsupportedError, UsageError
from tests.api.ring_attention_sharded import CASES
from tests.chosen import chosen

# Each layout, strategy and feature; the others are variants.
KEPT = (
    *("zigzag documents with sinks", "striped causal window with lengths", "nothing hidden, heads one after the other"),
    *("contiguous causal with lengths and a cap", "ulysses", "all_gather"),
)


@pytest.fixture(scope="module")
def results(request):
    mine = (item for item in request.session.items if item.path == request.path)
    names = [item.callspec.params["name"] for item in mine if "name" in item.fixturenames]
    flags = "--xla_force_host_platform_device_count=8 --xla_cpu_multi_thread_eigen=false"
    done = subprocess.run(
        [sys.executable, "-m", "tests.api.ring_attention_sharded", *names],
        env=os.environ | {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {flags}", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", chosen(CASES, KEPT))
def test_ring_attention_and_its_gradients_are_those_of_the_whole_sequence(results, name):
    assert results[name] < (0.06 if "bfloat16" in name else 5e-6)


@pytest.mark.slow
def test_a_causal_ring_gathers_nothing_and_passes_keys_and_values_seven_times(results):
    # Of eight devices: keys and values on their way in each direction, and their gradients home.
    assert results["transfers"]["zigzag"] == [[2 * 7, 0], [6 * 7, 0]]


def test_what_a_zigzag_hop_brings_is_merged_without_updates_of_slices():
    # Each is a pass of its own over the output in float32.
    x = jax.ShapeDtypeStruct((2, 1, 8, 2, 16), jnp.float32)
    local = functools.partial(attn_tune.ring_attention, axis_name="cp", causal=True, strategy="ring")
    program = str(jax.make_jaxpr(jax.vmap(local, axis_name="cp"))(x, x, x))
    assert "concatenate" in program
    assert "scatter" not in program


@pytest.mark.slow
def test_hops_beyond_a_window_are_left_out_of_a_ring(results):
    assert results["transfers"]["window"] == [[2, 0], [6, 0]]


@pytest.mark.slow
def test_every_strategy_over_axes_in_another_order_than_the_meshs_is_right(results):
    assert results["swapped"] < 5e-6


@pytest.mark.slow
def test_decoding_over_a_sharded_cache_is_that_over_a_whole_one(results):
    assert results["decoded"] < 5e-6


@pytest.mark.parametrize("layout", ["zigzag", "striped"])
@pytest.mark.parametrize("axis", [1, -2])
def test_positions_of_a_shard_are_those_of_its_tokens(layout, axis):
    shard, unshard = (getattr(attn_tune, f"{layout}_{word}") for word in ("shard", "unshard"))
    tokens = np.broadcast_to(np.arange(24, dtype=np.int32)[None, :, None], (2, 24, 3))
    dealt = shard(tokens, axis, 4)
    np.testing.assert_array_equal(unshard(dealt, axis, 4), tokens)
    positions = functools.partial(attn_tune.local_positions, 6, "cp", layout)
    found = jax.vmap(lambda _: positions(), axis_name="cp")(jnp.zeros(4))
    np.testing.assert_array_equal(found.reshape(-1), dealt[0, :, 0])


def test_a_band_of_a_ring_is_what_the_bounds_leave_of_a_square():
    length = 5
    row, column = np.indices((length, length))
    for most in (None, *range(-6, 7)):
        for least in (None, *range(-6, 7)):
            if most is not None and least is not None and least > most:
                continue
            seen = np.ones((length, length), bool)
            seen &= True if most is None else row - column <= most
            seen &= True if least is None else row - column >= least
            band = band_of(length, most, least)
            if band is None:
                assert not seen.any()
                continue
            rest = seen.copy()
            rest[band.rows, band.keys] = False
            assert not rest.any()
            cut = seen[band.rows, band.keys]
            assert cut.any(axis=0).all() or cut.any(axis=1).all()
            mask = MaskInfo(sliding_window=band.window)
            assert cut.shape[0] == cut.shape[1]
            dense = mask.get_or_compute_attention_mask(*cut.shape)
            np.testing.assert_array_equal(np.ones_like(cut) if dense is None else dense[0, 0], cut)


def test_a_ring_of_short_shards_exchanges_heads_where_they_divide():
    shape = {"T": 512, "N": 32, "K": 8}
    chosen = functools.partial(strategy_of, Ring("cp", 8, Layout.ZIGZAG), mask=MaskInfo(causal=True))
    assert chosen(shape) == "ulysses"
    assert chosen(shape | {"K": 4}) == "ring"
    assert chosen(shape | {"T": 8192}) == "ring"
    windowed = MaskInfo(causal=True, sliding_window=128)
    assert strategy_of(Ring("cp", 8, Layout.ZIGZAG), shape, windowed) == "ring"


def called(size=4, tokens=8, **arguments):
    arrays = [jnp.zeros((size, 1, tokens, heads, 8)) for heads in (4, 2, 2)]
    arrays = [arguments.pop(name, x) for name, x in zip(("query", "key", "value"), arrays, strict=True)]
    call = functools.partial(attn_tune.ring_attention, **{"axis_name": "cp"} | arguments)
    return jax.eval_shape(jax.vmap(call, axis_name="cp"), *arrays)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"axis_name": "sequence"}, "axis_name 'sequence' is not bound here: call it inside jax.shard_map"),
        ({"axis_name": ("cp", "cp")}, r"axis_name \('cp', 'cp'\) names an axis twice"),
        ({"layout": "zig"}, "layout 'zig'; did you mean 'zigzag'?"),
        ({"strategy": "rings"}, "strategy 'rings'"),
        ({"tokens": 7}, "a shard of 7 tokens has no two equal chunks, which layout='zigzag' needs: pad"),
        ({"query": jnp.zeros((4, 1, 6, 4, 8))}, "query has 6 tokens on a device and key 8: .* call flash_attention"),
        ({"chunks": 3}, "chunks must divide the 2 key/value heads, got 3"),
        ({"lengths": jnp.zeros(2, jnp.int32)}, r"lengths must be integers \[1\], got int32\[2\]"),
        ({"kv_segment_ids": jnp.zeros((1, 8), jnp.int32)}, "q_segment_ids is missing"),
        ({"q_segment_ids": jnp.zeros(8, jnp.int32)}, r"q_segment_ids must be integers \[B, length\], got int32\[8\]"),
        (
            {"q_segment_ids": jnp.zeros((1, 32), jnp.int32), "size": 2, "strategy": "ulysses"},
            r"q_segment_ids must have shape \(1, 8\), got \(1, 32\)",
        ),
        ({"causal": None}, "causal must be True or False"),
        ({"return_lse": "no"}, "return_lse must be True or False"),
        ({"platform": "cuda", "strategy": "ring"}, "unknown kernel of flash_attention 'cuda'"),
    ],
)
def test_a_malformed_argument_of_ring_attention_is_named(arguments, words):
    with pytest.raises(UsageError, match=words):
        called(**arguments)


def test_explicit_axes_that_the_shard_map_leaves_out_are_named():
    explicit = jax.sharding.AxisType.Explicit
    mesh = jax.sharding.AbstractMesh((2, 2), ("data", "cp"), axis_types=(explicit, explicit))
    local = functools.partial(attn_tune.ring_attention, axis_name="cp", causal=True)

    def traced(batch, axes):
        spec = jax.P("data" if "data" in axes else None, "cp")
        x = jax.ShapeDtypeStruct(
            (2, 16, 2, 8), jnp.float32, sharding=jax.sharding.NamedSharding(mesh, jax.P(batch, "cp"))
        )
        call = jax.shard_map(local, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, axis_names=axes)
        with jax.sharding.use_abstract_mesh(mesh):
            return jax.eval_shape(call, x, x, x)

    with pytest.raises(UsageError, match="sharded along data too, explicit axes that"):
        traced("data", {"cp"})
    assert traced("data", {"data", "cp"}).shape == (2, 16, 2, 8)
    assert traced(None, {"cp"}).shape == (2, 16, 2, 8)


def test_ulysses_refuses_heads_that_do_not_divide():
    with pytest.raises(UnsupportedError, match=r"each of 4 devices its share of the 2 key/value heads.*'ring'"):
        called(strategy="ulysses")
    with pytest.raises(
        UnsupportedError, match=r"the 1 key/value heads of each of 2 chunks.*use fewer chunks, strategy="
    ):
        called(size=2, strategy="ulysses", chunks=2)


def test_a_call_that_names_no_strategy_takes_one_that_its_groups_of_heads_allow():
    # Two devices divide two key heads, but not one of each group.
    assert called(size=2, chunks=2).shape == (2, 1, 8, 4, 8)


def test_sequences_that_a_layout_does_not_divide_are_refused():
    with pytest.raises(UsageError, match="axis 0 has 12 tokens, which 8 equal parts of layout='zigzag' do not divide"):
        attn_tune.zigzag_shard(jnp.zeros(12), 0, 4)


@pytest.mark.parametrize(
    ("axis", "n", "words"),
    [
        (0, 0, "n must be a number of devices, 1 or more, got 0"),
        (0, 2.0, "n must be a number of devices, 1 or more, got 2.0"),
        (1, 2, "axis must be one of the 1 axes of x, got 1"),
        ("tokens", 2, "axis must be one of the 1 axes of x, got 'tokens'"),
    ],
)
def test_a_malformed_argument_of_a_layout_is_named(axis, n, words):
    with pytest.raises(UsageError, match=words):
        attn_tune.striped_unshard(jnp.zeros(12), axis, n)


def test_merge_over_axis_names_arrays_that_do_not_fit():
    with pytest.raises(UsageError, match=r"lse must be float32\[2, 3\], the axes of out but the last"):
        jax.vmap(lambda x: attn_tune.merge_over_axis(x, x, "cp"), axis_name="cp")(jnp.zeros((4, 2, 3, 8)))


@pytest.mark.parametrize("lse", [jnp.nan, jnp.inf])
def test_an_lse_that_is_no_number_makes_a_merged_result_that_is_none(lse):
    lses = jnp.stack([jnp.zeros(3), jnp.full(3, lse), jnp.full(3, -jnp.inf)])
    merge = jax.vmap(functools.partial(attn_tune.merge_over_axis, axis_name="cp"), axis_name="cp")
    assert all(jnp.isnan(x).all() for x in merge(jnp.ones((3, 3, 8)), lses))
    out, lse = merge(jnp.ones((3, 3, 8)), jnp.stack([jnp.zeros(3), *[jnp.full(3, -jnp.inf)] * 2]))
    np.testing.assert_array_equal(out, jnp.ones((3, 3, 8)))
    np.testing.assert_array_equal(lse, jnp.zeros((3, 3)))


@pytest.mark.parametrize("highest", [5, 2**31 - 2, 2**31 - 1])
def test_padding_meets_no_document_whatever_its_id(highest):
    ids = jnp.array([[[0, 0, 0, 0]], [[highest] * 4]])
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.standard_normal((2, 1, 4, 1, 8)), jnp.float32) for _ in range(3))
    local = functools.partial(attn_tune.ring_attention, axis_name="cp", layout="contiguous", strategy="ring")
    call = jax.vmap(lambda q, k, v, ids: local(q, k, v, q_segment_ids=ids, lengths=jnp.array([6])), axis_name="cp")
    # The last device's document has two tokens.
    want = attn_tune.flash_attention(q[1, :, :2], k[1, :, :2], v[1, :, :2])
    np.testing.assert_allclose(call(q, k, v, ids)[1, :, :2], want, atol=1e-6)


def test_a_ring_scatters_into_no_whole_array():
    # The partitioner of JAX 0.11.2 ends with a SIGSEGV on a scatter that has no indices.
    mesh = jax.sharding.AbstractMesh((2,), ("cp",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec(None, "cp")
    local = functools.partial(attn_tune.ring_attention, axis_name="cp", layout="contiguous", strategy="ring")
    ring = jax.shard_map(local, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec)
    x = jnp.ones((1, 16, 1, 8))
    gradient = jax.jit(jax.grad(lambda x: ring(x, x, x).sum())).trace(x)
    text = gradient.lower(lowering_platforms=("cpu",)).as_text()
    assert "collective_permute" in text
    assert "scatter" not in text


def test_a_block_around_a_ring_holds_for_its_backward_too(tmp_path):
    path = tmp_path / "overrides.json"
    never = {"op": "flash_attention", "kernel": "xla", "direction": "bwd", "reason": "a test"}
    path.write_text(json.dumps({"format": 1, "never": [never]}))
    mesh, spec = jax.make_mesh((1,), ("cp",), axis_types=(jax.sharding.AxisType.Auto,)), jax.P(None, "cp")

    def loss(q):
        with attn_tune.use_overrides(path):
            return attn_tune.ring_attention(q, q, q, axis_name="cp", strategy="ring").sum()

    sharded = jax.shard_map(lambda q: jax.lax.psum(loss(q), "cp"), mesh=mesh, in_specs=spec, out_specs=jax.P())
    q = jnp.ones((1, 16, 2, 8))
    assert jnp.isfinite(sharded(q))
    with pytest.raises(UnsupportedError, match="an override forbids it"):
        jax.grad(sharded)(q)
