"""The interpreter path, case by case. ``test_triton_interpret.py`` runs this file where TRITON_INTERPRET=1."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import triton_samples as samples
from jax.sharding import AxisType, PartitionSpec

from attn_tune.kernels.lang.triton.interpret import OutOfBoundsStore, poison
from attn_tune.schema.errors import AttnTuneError, UnsupportedError

UNIT_ROUNDOFF = {"float32": 2**-24, "float16": 2**-11, "bfloat16": 2**-8}


def normal(*shape, dtype="float32", seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def wide(x):
    return np.asarray(x).astype(np.float64)


@pytest.mark.parametrize("dtype", UNIT_ROUNDOFF)
@pytest.mark.parametrize("shape", [(32, 32, 32), (50, 33, 40), (1, 1, 100)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_matmul_is_rounded_once(dtype, shape, has_bias):
    m, n, k = shape
    a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype, seed=1)
    bias = normal(n, seed=2) if has_bias else None
    out = jax.jit(samples.matmul)(a, b, bias)
    want = wide(a) @ wide(b) + (wide(bias) if has_bias else 0)
    # One rounding to the dtype, and float32 accumulation of k terms.
    bound = UNIT_ROUNDOFF[dtype] * np.abs(want) + k * 2**-23 * (np.abs(wide(a)) @ np.abs(wide(b)) + 4)
    assert out.dtype == dtype
    assert np.all(np.abs(wide(out) - want) <= bound)


@pytest.mark.parametrize("dtype", UNIT_ROUNDOFF)
def test_softmax_has_two_outputs(dtype):
    x = normal(5, 37, dtype=dtype)
    weights, log_sum = samples.softmax(x)
    logits = wide(x)
    want = np.log(np.exp(logits).sum(axis=1))
    np.testing.assert_allclose(log_sum, want, rtol=1e-6)
    np.testing.assert_allclose(weights, np.exp(logits - want[:, None]), rtol=1e-5)


def test_uint32_wraps_and_shifts_logically():
    x = np.random.default_rng(0).integers(0, 2**32, 300, dtype=np.uint32)

    def mixed(bits):
        bits = bits ^ (bits >> np.uint32(16))
        bits = bits * np.uint32(0x7FEB352D)
        bits = bits ^ (bits >> np.uint32(15))
        bits = bits * np.uint32(0x846CA68B)
        return bits ^ (bits >> np.uint32(16))

    np.testing.assert_array_equal(samples.elementwise(samples.hash_kernel, jnp.asarray(x)), mixed(x))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_every_operation_rounds_to_nearest(dtype):
    x = normal(500, dtype=dtype)
    host = np.asarray(x)
    np.testing.assert_array_equal(
        np.asarray(samples.elementwise(samples.square_kernel, x)).astype(np.float32),
        (host * host - host).astype(np.float32),
    )


def test_dataclass_constexpr():
    x = normal(32)
    np.testing.assert_allclose(samples.affine(x, 0.5, 3), 0.5 * x + 3, rtol=1e-6)


def test_boolean_operand():
    x = normal(100)
    mask = jnp.asarray(np.random.default_rng(1).random(100) < 0.5)
    np.testing.assert_array_equal(samples.masked(x, mask), jnp.where(mask, x, 0))


def test_bfloat16_keeps_special_values():
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 3e38, 1e-30], ml_dtypes.bfloat16)
    out = np.asarray(samples.add(jnp.asarray(special), jnp.zeros(7, jnp.bfloat16)))
    np.testing.assert_array_equal(out.astype(np.float32), special.astype(np.float32))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "uint8", "bool"])
def test_elements_that_are_not_written_are_poison(dtype):
    x = jnp.zeros(20, dtype)
    out = np.asarray(samples.elementwise(samples.half_written_kernel, x))
    np.testing.assert_array_equal(out[:10], np.zeros(10, dtype))
    np.testing.assert_array_equal(out[10:].astype(np.float64), np.full(10, poison(out.dtype)).astype(np.float64))


@pytest.mark.parametrize("length", [20, 31])
def test_store_out_of_bounds_is_an_error(length):
    with pytest.raises(Exception, match="wrote outside the bounds of 'out'"):
        jax.block_until_ready(samples.elementwise(samples.overrunning_kernel, jnp.zeros(length, jnp.float32)))


def test_store_to_an_operand_is_an_error():
    with pytest.raises(Exception, match="wrote to its operand 'x'"):
        jax.block_until_ready(samples.elementwise(samples.in_place_kernel, jnp.zeros(20)))
    assert issubclass(OutOfBoundsStore, AttnTuneError)


def test_load_out_of_bounds_reads_poison():
    # 20 columns of a block of 32 are masked; without the mask they would be read from behind the operand.
    a, b = normal(20, 20), normal(20, 20, seed=1)
    assert np.all(np.isfinite(samples.matmul(a, b)))
    short = samples.add(normal(40), normal(8, seed=1))
    assert np.all(np.isfinite(short[:8]))
    assert np.all(np.isnan(short[8:]))


def test_descriptors():
    x = normal(64, 32)
    np.testing.assert_array_equal(samples.descriptor_copy(x), x)


def test_vmap_runs_each_element():
    a, b = normal(3, 20, 16), normal(16, 24, seed=1)
    out = jax.jit(jax.vmap(samples.matmul, in_axes=(0, None)))(a, b)
    np.testing.assert_allclose(out, a @ b, rtol=1e-5, atol=1e-5)
    last = jax.vmap(samples.add, in_axes=(1, None), out_axes=1)(normal(20, 3), normal(20, seed=1))
    np.testing.assert_allclose(last, normal(20, 3) + normal(20, seed=1)[:, None], rtol=1e-6)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_shard_map_runs_each_shard(check_vma, axis_type):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(axis_type,))
    spec = PartitionSpec("x")
    a, b = normal(40, 16), normal(16, 24, seed=1)
    with jax.set_mesh(mesh):
        f = jax.shard_map(
            samples.matmul,
            mesh=mesh,
            in_specs=(spec, PartitionSpec()),
            out_specs=spec,
            check_vma=check_vma,
        )
        out = jax.jit(f)(*jax.device_put((a, b), (spec, PartitionSpec())))
    np.testing.assert_allclose(out, np.asarray(a) @ np.asarray(b), rtol=1e-5, atol=1e-5)


def test_custom_vjp_scan_and_remat():
    @jax.custom_vjp
    def product(a, b):
        return samples.matmul(a, b)

    product.defvjp(
        lambda a, b: (samples.matmul(a, b), (a, b)),
        lambda kept, d: (samples.matmul(d, kept[1].T), samples.matmul(kept[0].T, d)),
    )

    def loss(multiply, a, b):
        def step(carry, _):
            return jnp.tanh(multiply(carry, b)), None

        return jax.lax.scan(jax.checkpoint(step), a, length=3)[0].sum()

    a, b = normal(12, 16), normal(16, 16, seed=1) / 4
    got = jax.jit(jax.grad(functools.partial(loss, product), argnums=(0, 1)))(a, b)
    want = jax.grad(functools.partial(loss, jnp.matmul), argnums=(0, 1))(a, b)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)


def test_large_operands_on_two_devices_do_not_wait_for_each_other():
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("x")
    big = normal(2**21)
    f = jax.jit(
        jax.shard_map(
            lambda x: samples.add(samples.add(x, x, block=2**20), x, block=2**20),
            mesh=mesh,
            in_specs=spec,
            out_specs=spec,
        )
    )
    np.testing.assert_allclose(f(big), 3 * big, rtol=1e-6)


def test_a_call_without_a_derivative_refuses_to_be_differentiated():
    with pytest.raises(UnsupportedError, match="'matmul_kernel' has no derivative of its own"):
        jax.grad(lambda a: samples.matmul(a, a).sum())(normal(16, 16))


def test_runs_where_jit_is_disabled():
    x = normal(40)
    with jax.disable_jit():
        np.testing.assert_array_equal(samples.add(x, x), 2 * x)


def test_an_output_that_is_added_to_starts_at_zero_and_the_others_do_not():
    x = normal(6, 32)
    sums, rows = jax.jit(samples.column_sums)(x)
    np.testing.assert_allclose(sums, wide(x).sum(0), rtol=1e-5)
    np.testing.assert_array_equal(rows[::2], x[::2])
    assert np.all(np.isnan(rows[1::2]))
    eager, _ = samples.column_sums(x)
    np.testing.assert_array_equal(eager, sums)


def test_an_operand_updated_in_place_keeps_the_rest_and_leaves_the_caller_its_own():
    new, cache = normal(2, 16), normal(8, 16, seed=1)
    before = np.array(cache)
    want = before.copy()
    want[[5, 2]] = new
    position = jnp.asarray([5, 2], jnp.int32)
    for call in (
        samples.append,
        jax.jit(samples.append),
        jax.jit(samples.append, donate_argnums=2),
    ):
        np.testing.assert_array_equal(call(new, position, jnp.array(cache)), want)
    np.testing.assert_array_equal(samples.append(new, position, cache), want)
    np.testing.assert_array_equal(cache, before)


def test_updates_in_place_go_through_scans_and_batches():
    new, cache = normal(3, 2, 16), normal(8, 16, seed=1)
    positions = jnp.asarray([[0, 1], [2, 3], [0, 7]], jnp.int32)

    def step(cache, item):
        return samples.append(*item, cache), None

    want = np.array(cache)
    for rows, position in zip(np.asarray(new), positions, strict=True):
        want[position] = rows
    np.testing.assert_array_equal(jax.lax.scan(step, cache, (new, positions))[0], want)
    batched = jax.vmap(samples.append, (0, 0, None))(new, positions, cache)
    for got, rows, position in zip(batched, new, positions, strict=True):
        np.testing.assert_array_equal(got, np.array(jnp.array(cache).at[position].set(rows)))


def test_an_operand_that_is_not_updated_in_place_may_still_not_be_written():
    new, cache = normal(2, 16), normal(8, 16, seed=1)
    position = jnp.asarray([5, 2], jnp.int32)
    rows = samples.append(new, position, cache, aliases={})
    assert np.all(np.isnan(np.delete(np.asarray(rows), [5, 2], axis=0)))


def test_sums_by_atomics_are_batched_one_by_one_and_have_no_derivative():
    x = normal(3, 4, 32)
    sums, _ = jax.vmap(samples.column_sums)(x)
    np.testing.assert_allclose(sums, wide(x).sum(1), rtol=1e-5)
    with pytest.raises(UnsupportedError, match="'column sums' has no derivative of its own"):
        jax.grad(lambda x: samples.column_sums(x)[0].sum())(x[0])
