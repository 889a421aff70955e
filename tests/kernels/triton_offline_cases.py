"""Compiling and lowering without a GPU, case by case. ``test_triton_compile.py`` runs this file, without interpreter."""

import functools
import re
import subprocess
import zlib
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import pytest
import triton
import triton_samples as samples
from triton import knobs

from attn_tune.kernels._common.triton_call import triton_call
from attn_tune.kernels._common.triton_compile import (
    MAX_SHARED_BYTES,
    CompileError,
    OutOfResources,
    record_compiles,
)
from attn_tune.kernels._common.triton_target import compile_target
from attn_tune.schema.errors import UnsupportedError, UsageError

CAPABILITIES = (80, 89, 90, 100, 120)


def array(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


def lower(f, *arrays, capability=90):
    """The lowered module and what was compiled for it."""
    with compile_target(capability), record_compiles() as compiled:
        lowered = jax.jit(f).trace(*arrays).lower(lowering_platforms=("cuda",))
    return lowered, compiled


@pytest.fixture
def builds():
    """Names and cache hits of what passes through Triton's compiler."""
    seen = []
    with knobs.compilation.scope():
        knobs.compilation.listener = lambda src, cache_hit, **_: seen.append((src.name, cache_hit))
        yield seen


@dataclass
class Message:
    """A protobuf message as its fields by number: integers, or bytes."""

    fields: dict[int, list[int | bytes]]

    @classmethod
    def parse(cls, data: bytes) -> "Message":
        fields, at = {}, 0

        def varint():
            nonlocal at
            value = shift = 0
            while True:
                byte, at = data[at], at + 1
                value, shift = value | (byte & 0x7F) << shift, shift + 7
                if byte < 0x80:
                    return value

        while at < len(data):
            number, kind = divmod(varint(), 8)
            assert kind in (0, 2), kind
            value = varint()
            if kind == 2:
                value, at = data[at : at + value], at + value
            fields.setdefault(number, []).append(value)
        return cls(fields)

    def __getitem__(self, number):
        return self.fields.get(number, [0])[0]


@dataclass
class Call:
    """One custom call of a lowered module, read back from the bytes that jaxlib's launcher gets."""

    name: str
    grid: tuple[int, int, int]
    parameters: int
    kernel: str
    num_warps: int
    shared_bytes: int
    ptx: bytes
    capability: int


def custom_calls(lowered):
    # Field numbers: jaxlib/gpu/triton.proto.
    calls = []

    def visit(op):
        if op.name == "stablehlo.custom_call":
            assert op.attributes["call_target_name"].value == "triton_kernel_call"
            any_call = Message.parse(zlib.decompress(op.attributes["backend_config"].value_bytes))
            call = Message.parse(any_call[1])
            kernel = Message.parse(call[1])
            calls.append(
                Call(
                    name=any_call[4].decode(),
                    grid=(call[2], call[3], call[4]),
                    parameters=len(call.fields[5]),
                    kernel=kernel[1].decode(),
                    num_warps=kernel[2],
                    shared_bytes=kernel[3],
                    ptx=kernel[4],
                    capability=kernel[6],
                )
            )
        for region in op.regions:
            for block in region:
                for inner in block:
                    visit(inner.operation)

    visit(lowered.compiler_ir("stablehlo").operation)
    return calls


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_compiles_for(capability):
    lowered, (compiled,) = lower(
        functools.partial(samples.matmul, tile=(64, 64, 32), num_stages=3),
        array(100, 96),
        array(96, 80),
        capability=capability,
    )
    suffix = "a" if capability >= 90 else ""
    assert f".target sm_{capability}{suffix}" in compiled.ptx
    assert compiled.cubin[:4] == b"\x7fELF"
    assert compiled.capability == capability
    assert 16 <= compiled.registers <= 255
    assert compiled.spill_bytes == 0
    assert 8192 <= compiled.shared_bytes <= MAX_SHARED_BYTES[capability]
    (call,) = custom_calls(lowered)
    assert call.ptx.decode() == compiled.ptx
    assert call.capability == capability


@pytest.mark.parametrize("num_warps", [1, 4, 8])
def test_the_launch_is_what_was_asked(num_warps):
    lowered, (compiled,) = lower(
        functools.partial(
            samples.matmul, tile=(32, 16, 32), num_warps=num_warps, name="my product"
        ),
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


def test_an_absent_operand_takes_no_parameter():
    a, b = array(64, 64), array(64, 64)
    without, _ = lower(samples.matmul, a, b)
    with_bias, _ = lower(samples.matmul, a, b, array(64, dtype=jnp.float32))
    assert [call.parameters for call in custom_calls(without)] == [3]
    assert [call.parameters for call in custom_calls(with_bias)] == [4]


def test_loads_are_vectorised_and_pipelined():
    # The whole point of constexpr strides and of the alignment hint.
    _, (compiled,) = lower(
        functools.partial(samples.matmul, tile=(128, 128, 64), num_warps=8),
        array(256, 256),
        array(256, 256),
    )
    copies = re.findall(r"cp\.async\.\S+ \[[^]]*\], \[[^]]*\], (\S+),", compiled.ptx)
    assert copies and set(copies) == {"0x10"}
    assert "wgmma.mma_async" in compiled.ptx


def test_options_reach_the_compiler():
    product = functools.partial(samples.matmul, tile=(128, 128, 64))
    _, (free,) = lower(product, array(256, 256), array(256, 256), capability=80)
    bounded = functools.partial(product, maxnreg=128, num_stages=2)
    _, (tight,) = lower(bounded, array(256, 256), array(256, 256), capability=80)
    assert tight.registers <= 128 < free.registers
    assert tight.shared_bytes < free.shared_bytes


def test_registers_and_spills_are_those_of_ptxas(tmp_path):
    spilling = functools.partial(samples.matmul, tile=(128, 128, 64), maxnreg=64)
    _, (compiled,) = lower(spilling, array(256, 256), array(256, 256), capability=80)
    (tmp_path / "kernel.ptx").write_text(compiled.ptx)
    report = subprocess.run(
        [
            knobs.nvidia.ptxas.path,
            "-v",
            "-lineinfo",
            "--gpu-name=sm_80",
            "kernel.ptx",
            "-o",
            "kernel.cubin",
        ],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    ).stderr
    registers = re.search(r"Used (\d+) registers", report)
    stack = re.search(r"(\d+) bytes stack frame", report)
    assert registers
    assert stack
    assert compiled.registers == int(registers[1]) == 64
    assert compiled.spill_bytes == pytest.approx(int(stack[1]), rel=0.2)
    assert compiled.spill_bytes > 1000


@pytest.mark.parametrize(("capability", "limit"), [(80, 166_912), (89, 101_376), (120, 101_376)])
def test_too_much_shared_memory(capability, limit):
    product = functools.partial(samples.matmul, tile=(128, 128, 128), num_stages=5)
    with record_compiles() as compiled, pytest.raises(OutOfResources) as caught:
        lower(product, array(1024, 1024), array(1024, 1024), capability=capability)
    error = caught.value
    assert (error.resource, error.limit) == ("shared memory", limit)
    assert error.needed > limit
    assert f"needs {error.needed} bytes of shared memory, more than the limit of {limit}" in str(
        error
    )
    assert compiled == []  # The inner recorder has it.


def test_what_does_not_fit_is_recorded():
    product = functools.partial(samples.matmul, tile=(128, 128, 128), num_stages=5)
    with compile_target(80), record_compiles() as compiled, pytest.raises(OutOfResources) as caught:
        jax.jit(product).trace(array(1024, 1024), array(1024, 1024)).lower(
            lowering_platforms=("cuda",)
        )
    assert [kernel.shared_bytes for kernel in compiled] == [caught.value.needed]


def test_too_few_registers_and_too_many_threads(capsys):
    a = array(256, 256)
    with pytest.raises(OutOfResources, match="needs 90 registers a thread") as caught:
        lower(functools.partial(samples.matmul, tile=(128, 128, 64), maxnreg=64), a, a)
    assert (caught.value.needed, caught.value.limit, caught.value.resource) == (90, 64, "registers")
    with pytest.raises(OutOfResources, match="2048 threads a block, more than the limit of 1024"):
        lower(functools.partial(samples.matmul, num_warps=64), a, a)
    assert capsys.readouterr().out == ""


def test_what_triton_refuses_is_one_sentence():
    a = array(256, 256)
    with pytest.raises(
        CompileError, match="does not compile for sm_90: num_warps must be a power of 2"
    ):
        lower(functools.partial(samples.matmul, num_warps=3), a, a)
    with pytest.raises(CompileError, match="sm_80: num_ctas > 1"):
        lower(functools.partial(samples.matmul, num_ctas=2), a, a, capability=80)
    with pytest.raises(CompileError, match="does not compile for sm_90: .*BLOCK|power of 2"):
        lower(functools.partial(samples.add, block=48), array(64), array(64))
    with pytest.raises(UnsupportedError, match="'x' is an array of complex64"):
        lower(samples.add, array(64, dtype=jnp.complex64), array(64, dtype=jnp.complex64))


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

    _, compiled = lower(
        sums, array(64, dtype=jnp.float16), array(64, dtype=jnp.float16), capability=86
    )
    assert len(compiled) == 1
    assert len(builds) == 1


def test_equal_but_unlike_constants_do_not_share():
    def scaled(value):
        return lambda x: triton_call(
            samples.filled_kernel,
            x,
            out_types=[jax.ShapeDtypeStruct((32,), jnp.float32)],
            grid=(1,),
            constexprs={"VALUE": value},
        )

    digests = [lower(scaled(v), array(32))[1][0].digest for v in (1, True, 1.0, -0.0, 0.0)]
    assert len(set(digests)) >= 3
    assert digests[3] != digests[4]


def test_digest_forgets_where_the_source_is(tmp_path):
    text = "\n\n\n" + open(samples.__file__).read()
    (tmp_path / "moved_samples.py").write_text(text)
    import importlib.util

    spec = importlib.util.spec_from_file_location("moved_samples", tmp_path / "moved_samples.py")
    moved = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(moved)
    _, (here,) = lower(samples.softmax, array(4, 100))
    _, (there,) = lower(moved.softmax, array(4, 100))
    assert here.ptx != there.ptx
    assert here.digest == there.digest
    _, (other,) = lower(samples.softmax, array(4, 101))
    assert other.digest != here.digest


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


def test_shapes_need_no_gpu_and_lowering_says_so():
    f = jax.jit(lambda x: samples.add(x, x))
    x = array(64)
    assert jax.eval_shape(f, x) == x
    with pytest.raises(UnsupportedError, match="needs an NVIDIA GPU and this process has none"):
        f.trace(x).lower(lowering_platforms=("cuda",))
    with pytest.raises(
        UnsupportedError, match="runs on NVIDIA GPUs, not on cpu; set TRITON_INTERPRET=1"
    ):
        f(jnp.zeros(64, jnp.bfloat16))
    with pytest.raises(UsageError, match="compute capability 9 is not one"), compile_target(9):
        pass


@triton.jit
def constant_first_kernel(LENGTH: samples.tl.constexpr, x, out):
    pass


BAD_CALLS = {
    "has 3 pointer parameters (x, y, out) but was given 2 operands and outputs": (
        samples.add_kernel,
        1,
        {"LENGTH": 4, "BLOCK": 4},
        (1,),
    ),
    "has no constexpr 'LENGHT'; it has: LENGTH, BLOCK": (
        samples.add_kernel,
        2,
        {"LENGHT": 4, "BLOCK": 4},
        (1,),
    ),
    "needs the constexpr 'BLOCK', which has no default": (
        samples.add_kernel,
        2,
        {"LENGTH": 4},
        (1,),
    ),
    "constexpr 'BLOCK' of kernel 'add_kernel' is a object": (
        samples.add_kernel,
        2,
        {"LENGTH": 4, "BLOCK": object()},
        (1,),
    ),
    "grid axis y is 70000, outside 1 to 65535": (
        samples.add_kernel,
        2,
        {"LENGTH": 4, "BLOCK": 4},
        (1, 70_000),
    ),
    "grid axis x is 0, outside 1 to": (samples.add_kernel, 2, {"LENGTH": 4, "BLOCK": 4}, (0,)),
    "a grid has 1 to 3 axes, not 4": (
        samples.add_kernel,
        2,
        {"LENGTH": 4, "BLOCK": 4},
        (1, 1, 1, 1),
    ),
    "'LENGTH' stands before a pointer": (constant_first_kernel, 1, {"LENGTH": 4}, (1,)),
    "is not a Triton kernel; decorate it with triton.jit": (len, 1, {}, (1,)),
}


@pytest.mark.parametrize("sentence", BAD_CALLS)
def test_a_call_that_does_not_fit(sentence):
    kernel, operands, constexprs, grid = BAD_CALLS[sentence]
    x = jnp.zeros(4)
    with pytest.raises(UsageError, match=re.escape(sentence)):
        triton_call(kernel, *[x] * operands, out_types=[x], grid=grid, constexprs=constexprs)


def test_a_process_finds_what_another_compiled(builds):
    # test_triton_compile.py runs this case once more, alone, with the same cache directory.
    a = array(128, 128)
    lower(functools.partial(samples.matmul, tile=(64, 32, 32)), a, a)
    lower(samples.softmax, array(4, 64))
    print("BUILDS", *[f"{name}:{'found' if hit else 'compiled'}" for name, hit in builds])
    assert [name for name, _ in builds] == ["matmul_kernel", "softmax_kernel"]
