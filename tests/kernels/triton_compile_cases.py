"""Compiled kernels, GPU by GPU. ``test_triton_offline.py`` runs this, without the interpreter."""

import functools
import importlib.util
import re
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import triton_samples as samples
from triton import knobs
from triton_lowered import array, custom_calls, lower

from attn_tune.devices.environments import ASSEMBLER_VARIABLES
from attn_tune.kernels.lang.triton.compile import CompileError, OutOfResources, record_compiles
from attn_tune.kernels.lang.triton.limits import MAX_SHARED_BYTES
from attn_tune.kernels.lang.triton.target import compile_target
from attn_tune.schema.errors import StorageError, UnsupportedError

CAPABILITIES = (80, 90, 120)


@pytest.fixture
def builds():
    """Names and cache hits of what passes through Triton's compiler."""
    seen = []
    with knobs.compilation.scope():
        knobs.compilation.listener = lambda src, cache_hit, **_: seen.append((src.name, cache_hit))
        yield seen


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


def test_loads_are_vectorised_and_pipelined():
    # The whole point of constexpr strides and of the alignment hint.
    _, (compiled,) = lower(
        functools.partial(samples.matmul, tile=(128, 128, 64), num_warps=8),
        array(256, 256),
        array(256, 256),
    )
    copies = re.findall(r"cp\.async\.\S+ \[[^]]*\], \[[^]]*\], (\S+),", compiled.ptx)
    assert set(copies) == {"0x10"}
    assert "wgmma.mma_async" in compiled.ptx


def test_booleans_are_bytes():
    _, (compiled,) = lower(samples.masked, array(64), array(64, dtype=jnp.bool_))
    assert re.search(r"ld\.global\S*\.b8", compiled.ptx)


def test_options_reach_the_compiler():
    product = functools.partial(samples.matmul, tile=(64, 64, 64), num_warps=1)
    _, (free,) = lower(product, array(256, 256), array(256, 256), capability=80)
    bounded = functools.partial(product, maxnreg=128, num_stages=2)
    _, (tight,) = lower(bounded, array(256, 256), array(256, 256), capability=80)
    assert tight.registers <= 128 < free.registers
    assert tight.shared_bytes < free.shared_bytes


def test_registers_and_spills_are_those_of_ptxas(tmp_path):
    spilling = functools.partial(samples.matmul, tile=(64, 64, 64), num_warps=1, maxnreg=64)
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


@pytest.mark.parametrize(("capability", "limit"), [(80, 166_912), (120, 101_376)])
def test_too_much_shared_memory(capability, limit):
    product = functools.partial(samples.matmul, tile=(64, 64, 256), num_stages=5)
    with record_compiles() as compiled, pytest.raises(OutOfResources) as caught:
        lower(product, array(1024, 1024), array(1024, 1024), capability=capability)
    error = caught.value
    assert (error.resource, error.limit) == ("shared memory", limit)
    assert error.needed > limit
    assert f"needs {error.needed} bytes of shared memory, more than the limit of {limit}" in str(error)
    assert compiled == []  # The inner recorder has it.


def test_a_launch_that_does_not_fit_is_recorded():
    product = functools.partial(samples.matmul, tile=(64, 64, 256), num_stages=5)
    with compile_target(80), record_compiles() as compiled, pytest.raises(OutOfResources) as caught:
        jax.jit(product).trace(array(1024, 1024), array(1024, 1024)).lower(lowering_platforms=("cuda",))
    assert [kernel.shared_bytes for kernel in compiled] == [caught.value.needed]


def test_too_few_registers_and_too_many_threads(capsys):
    a = array(256, 256)
    with pytest.raises(OutOfResources, match="needs 90 registers a thread") as caught:
        lower(functools.partial(samples.matmul, tile=(128, 128, 64), maxnreg=64), a, a)
    assert (caught.value.needed, caught.value.limit, caught.value.resource) == (90, 64, "registers")
    with pytest.raises(OutOfResources, match="2048 threads a block, more than the limit of 1024"):
        lower(functools.partial(samples.matmul, num_warps=64), a, a)
    assert capsys.readouterr().out == ""


def test_an_error_of_triton_is_one_sentence():
    a = array(256, 256)
    with pytest.raises(CompileError, match="does not compile for sm_90: num_warps must be a power of 2"):
        lower(functools.partial(samples.matmul, num_warps=3), a, a)
    with pytest.raises(CompileError, match="sm_80: num_ctas > 1"):
        lower(functools.partial(samples.matmul, num_ctas=2), a, a, capability=80)
    with pytest.raises(CompileError, match=r"does not compile for sm_90: .*power of 2"):
        lower(functools.partial(samples.add, block=48), array(64), array(64))
    with pytest.raises(UnsupportedError, match="'x' is an array of complex64"):
        lower(samples.add, array(64, dtype=jnp.complex64), array(64, dtype=jnp.complex64))


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path / "file")
        with pytest.raises(StorageError, match="TRITON_CACHE_DIR must name"):
            lower(functools.partial(samples.add, block=256), array(64), array(64))


@pytest.mark.parametrize("capability", [90, 120])
def test_hopper_allocates_registers_as_its_assembler_does_and_a_user_decides(tmp_path, monkeypatch, capability):
    log, tool = tmp_path / "log", tmp_path / "ptxas"
    tool.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {knobs.nvidia.ptxas_blackwell.path} "$@"\n')
    tool.chmod(0o755)
    for variable in ASSEMBLER_VARIABLES:
        monkeypatch.setenv(variable, str(tool))
    monkeypatch.setenv("PTXAS_OPTIONS", "--regAllocOptLevel=3")
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path / "cache")
        lower(functools.partial(samples.add, block=512), array(64), array(64), capability=capability)
    (arguments,) = (line.split() for line in log.read_text().splitlines() if "--gpu-name" in line)
    options = [argument for argument in arguments if argument.startswith("--regAlloc")]
    assert ("--regAllocOptLevel=5" in options) == (capability == 90)
    assert options[-1] == "--regAllocOptLevel=3"


def test_line_tables_are_left_out_unless_asked_for(monkeypatch):
    _, (plain,) = lower(samples.softmax, array(4, 101))
    assert ".loc" not in plain.ptx
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "0")
    _, (with_lines,) = lower(samples.softmax, array(4, 103))
    assert ".loc" in with_lines.ptx


def test_digest_forgets_where_the_source_is(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "0")
    path = tmp_path / "moved_samples.py"
    path.write_text("\n\n\n" + Path(samples.__file__).read_text())
    spec = importlib.util.spec_from_file_location("moved_samples", path)
    assert spec is not None
    assert spec.loader is not None
    moved = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(moved)
    _, (here,) = lower(samples.softmax, array(4, 100))
    _, (there,) = lower(moved.softmax, array(4, 100))
    assert here.ptx != there.ptx
    assert here.digest == there.digest
    _, (other,) = lower(samples.softmax, array(4, 101))
    assert other.digest != here.digest


def test_a_process_finds_what_another_compiled(builds):
    # test_triton_compile.py runs this case once more, alone, with the same cache directory.
    a = array(128, 128)
    lower(functools.partial(samples.matmul, tile=(64, 32, 32)), a, a)
    lower(samples.softmax, array(4, 64))
    print("BUILDS", *[f"{name}:{'found' if hit else 'compiled'}" for name, hit in builds])
    assert [name for name, _ in builds] == ["matmul_kernel", "softmax_kernel"]
