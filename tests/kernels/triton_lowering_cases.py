"""Lowered launches, and when they are compiled. ``test_triton_offline.py`` runs this, without the interpreter."""

import functools

import jax
import jax.numpy as jnp
import pytest
import triton_samples as samples
from triton import knobs
from triton_lowered import array, custom_calls, lower

from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.compile import record_compiles
from attn_tune.kernels.lang.triton.target import compile_target
from attn_tune.schema.errors import UnsupportedError, UsageError


@pytest.fixture
def builds():
    """Names and cache hits of what passes through Triton's compiler."""
    seen = []
    with knobs.compilation.scope():
        knobs.compilation.listener = lambda src, cache_hit, **_: seen.append((src.name, cache_hit))
        yield seen


@pytest.mark.parametrize("num_warps", [1, 4, 8])
def test_the_launch_is_what_was_asked(num_warps):
    lowered, (compiled,) = lower(
        functools.partial(samples.matmul, tile=(32, 16, 32), num_warps=num_warps, name="my product"),
        array(100, 96),
        array(96, 80),
    )
    (call,) = custom_calls(lowered)
    assert (call.name, call.kernel) == ("my product", "matmul_kernel")
    assert call.grid == (4, 5, 1)
    assert call.parameters == 3
    assert call.num_warps == compiled.num_warps == num_warps
    assert call.shared_bytes == compiled.shared_bytes


@pytest.mark.parametrize(("capability", "added"), [(90, 8), (100, 4)])
def test_warps_of_specialisation_are_launched(capability, added):
    product = samples.specialised_matmul
    lowered, (compiled,) = lower(product, array(256, 256), array(256, 256), capability=capability)
    (call,) = custom_calls(lowered)
    assert f".reqntid {32 * (4 + added)}" in compiled.ptx
    assert call.num_warps == compiled.num_warps == 4 + added
    assert compiled.scratch_bytes > 0


BARRIER = "stablehlo.optimization_barrier"


def test_scratch_memory_is_an_output_that_is_dropped():
    product = samples.specialised_matmul
    lowered, (compiled,) = lower(product, array(256, 256), array(256, 256))
    (call,) = custom_calls(lowered)
    blocks = call.grid[0] * call.grid[1] * call.grid[2]
    assert call.parameters == 4
    assert f"tensor<{blocks * compiled.scratch_bytes}xui8>" in lowered.as_text()
    assert len(jax.tree.leaves(lowered.out_info)) == 1


def test_the_launcher_gets_the_outputs_to_set_to_zero():
    lowered, (compiled,) = lower(samples.column_sums, array(6, 32, dtype=jnp.float32))
    (call,) = custom_calls(lowered)
    assert (call.name, call.kernel) == ("column sums", "column_sums_kernel")
    assert call.zeroed_bytes == [0, 32 * 4, 0]
    assert "red.global" in compiled.ptx
    plain, _ = lower(samples.matmul, array(64, 64), array(64, 64))
    assert custom_calls(plain)[0].zeroed_bytes == [0, 0, 0]


def test_a_flag_for_every_output():
    x = jnp.zeros((2, 16), jnp.float32)
    with pytest.raises(UsageError, match="has 1 outputs, but zeroed=\\(True, False\\)"):
        triton_call(
            samples.shifted_kernel,
            x,
            out_types=[jax.ShapeDtypeStruct((16,), jnp.float32)],
            zeroed=(True, False),
            grid=(2,),
            constexprs={"SHIFT": 1},
            name="sums",
        )


def operations(lowered):
    (main,) = lowered.compiler_ir("stablehlo").body.operations
    return [op.operation.name for op in main.body.blocks[0]]


def test_an_operand_updated_in_place_is_one_buffer_with_its_output():
    new, position = array(2, 16, dtype=jnp.float32), array(2, dtype=jnp.int32)
    cache = array(64, 16, dtype=jnp.float32)
    with compile_target(90):
        f = jax.jit(samples.append, donate_argnums=2)
        lowered = f.trace(new, position, cache).lower(lowering_platforms=("cuda",))
    (call,) = custom_calls(lowered)
    assert call.parameters == 4
    text = lowered.as_text()
    # The launcher's operand 2, for the absent one takes no place, and argument 2 of the program.
    assert "operand_index = 2" in text
    assert "output_tuple_indices = []" in text
    assert "%arg2: tensor<64x16xf32> {tf.aliasing_output = 0 : i32}" in text
    # Nothing copies the cache on its way there and back, and no slice of a loop is moved into the call.
    assert operations(lowered) == [*[BARRIER] * 3, "stablehlo.custom_call", BARRIER, "func.return"]


def test_operands_that_are_not_updated_in_place_are_no_alias():
    lowered, _ = lower(samples.column_sums, array(6, 32, dtype=jnp.float32))
    assert "output_operand_alias" not in lowered.as_text()


def test_only_results_of_a_call_without_updates_in_place_are_behind_barriers():
    lowered, _ = lower(samples.column_sums, array(6, 32, dtype=jnp.float32))
    names = operations(lowered)
    call = names.index("stablehlo.custom_call")
    assert BARRIER not in names[:call]
    assert names[call + 1] == BARRIER


def test_an_absent_operand_takes_no_parameter():
    a, b = array(64, 64), array(64, 64)
    without, _ = lower(samples.matmul, a, b)
    with_bias, _ = lower(samples.matmul, a, b, array(64, dtype=jnp.float32))
    assert [call.parameters for call in custom_calls(without)] == [3]
    assert [call.parameters for call in custom_calls(with_bias)] == [4]


def test_shapes_share_a_compile(builds):
    def sums(x, y):
        # Lengths are constexprs here, grids are not.
        return samples.add(x, x, block=64), triton_call(
            samples.add_kernel,
            y.reshape(8, 8),
            y.reshape(8, 8),
            out_types=[jax.ShapeDtypeStruct((8, 8), y.dtype)],
            grid=(7,),
            constexprs={"LENGTH": 64, "BLOCK": 64},
        )

    _, compiled = lower(sums, array(64, dtype=jnp.float16), array(64, dtype=jnp.float16), capability=86)
    assert len(compiled) == 1
    assert len(builds) == 1


def test_equal_but_unlike_constants_do_not_share(builds):
    def shifted(by):
        return lambda x: triton_call(
            samples.shifted_kernel,
            x,
            out_types=[jax.ShapeDtypeStruct((32,), jnp.float32)],
            grid=(1,),
            constexprs={"SHIFT": by},
        )

    compiled = [lower(shifted(by), array(32), capability=86)[1][0] for by in (1, 1, 1.0, True)]
    assert compiled[0] is compiled[1]
    assert len(builds) == 3


def test_different_dataclass_constexprs_compile_apart(builds):
    x = array(32, dtype=jnp.float32)
    values = ((0.5, 3), (0.5, 3), (0.5, 4))
    compiled = [lower(lambda x, v=v: samples.affine(x, *v), x, capability=86)[1][0] for v in values]
    assert compiled[0] is compiled[1]
    assert compiled[0].digest != compiled[2].digest
    assert len(builds) == 2


def test_dropped_outputs_are_never_compiled(builds):
    def first(x):
        used, _ = samples.add(x, x, block=128), samples.softmax(x.reshape(8, 8))
        return used

    lowered, _ = lower(first, array(64), capability=87)
    assert [call.kernel for call in custom_calls(lowered)] == ["add_kernel"]
    assert [name for name, _ in builds] == ["add_kernel"]


def test_recording_sees_what_is_in_every_cache():
    f = jax.jit(lambda x: samples.add(x, x))
    for _ in range(2):
        with compile_target(90), record_compiles() as compiled:
            f.trace(array(64)).lower(lowering_platforms=("cuda",))
        assert [kernel.name for kernel in compiled] == ["add_kernel"]


def test_targets_do_not_share_a_trace():
    f = jax.jit(lambda x: samples.add(x, x))
    for capability in (80, 90, 80):
        with compile_target(capability):
            lowered = f.trace(array(64)).lower(lowering_platforms=("cuda",))
        assert [call.capability for call in custom_calls(lowered)] == [capability]


def test_the_device_of_the_environment_is_the_target_without_a_gpu(monkeypatch):
    for name, capability in (("nvidia-l40s", 89), ("nvidia-h200", 90)):
        monkeypatch.setenv("ATTN_TUNE_DEVICE_AS", name)
        lowered = jax.jit(lambda x: samples.add(x, x)).trace(array(64)).lower(lowering_platforms=("cuda",))
        assert [call.capability for call in custom_calls(lowered)] == [capability]


def test_shapes_need_no_gpu_and_lowering_says_so():
    f = jax.jit(lambda x: samples.add(x, x))
    x = array(64)
    assert jax.eval_shape(f, x) == x
    with pytest.raises(
        UnsupportedError, match=r"needs an NVIDIA GPU and this process has none.*set ATTN_TUNE_DEVICE_AS"
    ):
        f.trace(x).lower(lowering_platforms=("cuda",))
    with pytest.raises(UnsupportedError, match="NVIDIA GPUs, not on cpu; set TRITON_INTERPRET=1"):
        f(jnp.zeros(64, jnp.bfloat16))
    with pytest.raises(UsageError, match="compute capability 9 is not one"), compile_target(9):
        pass
