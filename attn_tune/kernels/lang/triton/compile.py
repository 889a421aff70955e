"""Compiles Triton kernels for any NVIDIA GPU, present or not, and records the resources that they need."""

import contextlib
import functools
import io
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from attn_tune.kernels.lang.triton.compiled import CompiledKernel, describe
from attn_tune.kernels.lang.triton.launch import CompileOptions, Launch
from attn_tune.kernels.lang.triton.limits import (
    MAX_SHARED_BYTES as MAX_SHARED_BYTES,
    WARP_SIZE,
    CompileError as CompileError,
    OutOfResources as OutOfResources,
    check_limits,
    typed_error,
)
from attn_tune.kernels.lang.triton.target import check_capability
from attn_tune.schema.errors import StorageError, UnsupportedError

TRITON_TYPES = {
    "bool": "i1",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e5m2": "fp8e5",
}
KEPT_IN_PROCESS = 512
# Triton 3.9 has all code assembled with --regAllocOptLevel=2, against a bug of CUDA 13's assemblers that it does not
# name. With 5, which is what they do by themselves, less is spilled, results are the same bits, and linear attention
# takes 5 to 18 % less time (benchmarks/results/h200/assemblers.json). Given where it was proven: on Hopper.
_ASSEMBLER_OPTIONS = {90: "--regAllocOptLevel=5"}
_LINE_INFO = "TRITON_DISABLE_LINE_INFO"


def compile_kernel(launch: Launch, in_dtypes: tuple[str, ...], capability: int) -> CompiledKernel:
    """Compiles the kernel of ``launch``, or finds it in this process or in Triton's cache on disk. Needs no GPU.

    Launches that differ in shapes and grid only share one compile.

    Args:
      in_dtypes: dtype names of the operands that are present.

    Raises:
      CompileError: Triton or ptxas refuses the kernel, or a dtype has no Triton type.
      OutOfResources: one block needs more than the GPU has.
      StorageError: Triton's cache directory cannot be written.
    """
    check_capability(capability)
    dtypes = (*in_dtypes, *(out.dtype for out in launch.out_types))
    key = _CompileKey(
        launch.kernel,
        launch.present,
        dtypes,
        launch.constexprs,
        launch.spelling,
        launch.options,
        capability,
    )
    # One at a time: standard output is redirected, and two threads may want the same kernel.
    with _COMPILING:
        compiled = _IN_PROCESS.get(key)
        if compiled is None:
            compiled = _compile(launch, dtypes, capability)
            _IN_PROCESS.put(key, compiled)
    recorded = _RECORDED.get()
    if recorded is not None:
        recorded.add(compiled, launch)
    check_limits(
        launch.name,
        capability,
        shared_bytes=compiled.shared_bytes,
        tensor_memory=compiled.tensor_memory,
        num_warps=compiled.num_warps,
    )
    return compiled


class Recording(list[CompiledKernel]):
    """Compiled kernels, each once. ``launches`` spells what is launched: digests of code with their grids."""

    def __init__(self):
        super().__init__()
        self.launches: list[str] = []

    def add(self, compiled: CompiledKernel, launch: Launch) -> None:
        """Notes one launch."""
        if compiled not in self:
            self.append(compiled)
        # Grids alone where there is no cluster, as in what is stored already.
        cluster = f" in clusters of {launch.cluster}" if launch.cluster > 1 else ""
        self.launches.append(f"{compiled.digest} {launch.grid}{cluster}")


@contextlib.contextmanager
def record_compiles() -> Iterator[Recording]:
    """The kernels that are lowered inside, each once, those that turn out to be too big among them.

    What was traced before is traced anew inside, so that nothing is missed.
    """
    recorded = Recording()
    token = _RECORDED.set(recorded)
    try:
        with recording_context()(object()):
            yield recorded
    finally:
        _RECORDED.reset(token)


@dataclass(frozen=True)
class _CompileKey:
    kernel: Any
    present: tuple[bool, ...]
    dtypes: tuple[str, ...]
    constexprs: tuple[tuple[str, Any], ...]
    spelling: str
    options: CompileOptions
    capability: int


class _RecentlyUsed:
    """The last compiled kernels of this process."""

    def __init__(self, size: int):
        self._size = size
        self._kept: OrderedDict[_CompileKey, CompiledKernel] = OrderedDict()

    def get(self, key: _CompileKey) -> CompiledKernel | None:
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def put(self, key: _CompileKey, compiled: CompiledKernel) -> None:
        self._kept[key] = compiled
        while len(self._kept) > self._size:
            self._kept.popitem(last=False)


_COMPILING = threading.Lock()
_IN_PROCESS = _RecentlyUsed(KEPT_IN_PROCESS)
_RECORDED: ContextVar[Recording | None] = ContextVar("recorded_compiles", default=None)


@functools.cache
def recording_context() -> Any:
    """A part of the key of jax's caches that is new in every recording, so that nothing is found there."""
    import jax

    return jax.make_user_context(None)


def _compile(launch: Launch, dtypes: tuple[str, ...], capability: int) -> CompiledKernel:
    import triton
    from triton.backends.compiler import GPUTarget

    pointers = dict(zip(launch.pointer_names, dtypes, strict=True))
    names = launch.kernel.arg_names
    source = _source_type(launch.kernel)(
        launch.kernel,
        signature={n: _pointer(n, pointers[n]) if n in pointers else "constexpr" for n in names},
        constexprs={(names.index(name),): value for name, value in launch.constants.items()},
        # XLA aligns every buffer to more than 16 bytes; without the hint loads are not vectorised.
        attrs={(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if n in pointers},
    )
    try:
        with _held_back_output(), _without_line_info():
            built = triton.compile(source, GPUTarget("cuda", capability, WARP_SIZE), _options(launch, capability))
    except OSError as error:
        raise StorageError(
            f"Triton cannot use its compile cache or its assembler for kernel {launch.name!r}: {error}; "
            "TRITON_CACHE_DIR must name a directory that can be written, TRITON_PTXAS_PATH and "
            "TRITON_PTXAS_BLACKWELL_PATH an assembler of CUDA (ptxas) where they are set"
        ) from error
    except Exception as error:
        # Triton's errors share no base class: its own, MLIR's RuntimeError, AssertionErrors of the front end.
        raise typed_error(launch.name, capability, error) from error
    return describe(built, capability)


def _source_type(kernel: Any) -> Any:
    """The class of sources that Triton compiles a kernel from: its own language, or Gluon."""
    if kernel.is_gluon():
        try:
            from triton.experimental.gluon import GluonASTSource
        except ImportError:  # Triton 3.6 has the class and does not export it.
            from triton.experimental.gluon._runtime import GluonASTSource

        return GluonASTSource
    from triton.compiler import ASTSource

    return ASTSource


@contextlib.contextmanager
def _held_back_output() -> Iterator[None]:
    """Keeps what this thread prints off standard output, where Triton puts the whole PTX when ptxas fails."""
    quiet = _QuietThread(sys.stdout)
    with contextlib.redirect_stdout(quiet):
        yield
    sys.stdout.write("".join(quiet.held))


@contextlib.contextmanager
def _without_line_info() -> Iterator[None]:
    """Leaves out the table of source lines, a fifth of the time that a kernel compiles; the machine code is the same.

    A profiler that wants them sets ``TRITON_DISABLE_LINE_INFO=0``.
    """
    from triton import knobs

    if _LINE_INFO in os.environ:
        yield
        return
    with knobs.compilation.scope():
        knobs.compilation.disable_line_info = True
        yield


class _QuietThread(io.TextIOBase):
    """A stream that holds back what its own thread writes and passes on the rest."""

    def __init__(self, stream: Any):
        self._stream, self._thread = stream, threading.get_ident()
        self.held: list[str] = []

    def write(self, text: str, /) -> int:
        if threading.get_ident() != self._thread:
            return self._stream.write(text)
        self.held.append(text)
        return len(text)


def _options(launch: Launch, capability: int) -> dict[str, Any]:
    from triton import knobs

    options = launch.options
    # Of an option that is given twice the assembler takes the last.
    assembler = filter(None, (_ASSEMBLER_OPTIONS.get(capability), knobs.nvidia.ptxas_options))
    chosen = {
        "num_warps": options.num_warps,
        "num_stages": options.num_stages,
        "num_ctas": options.num_ctas,
        # Said aloud because Triton is changing its default.
        "enable_fp_fusion": True,
        "ptx_options": " ".join(assembler) or None,
    }
    return chosen if options.maxnreg is None else {**chosen, "maxnreg": options.maxnreg}


def _pointer(name: str, dtype: str) -> str:
    if dtype not in TRITON_TYPES:
        raise UnsupportedError(
            f"{name!r} is an array of {dtype}, which Triton has no type for; it has {', '.join(TRITON_TYPES)}"
        )
    return "*" + TRITON_TYPES[dtype]
