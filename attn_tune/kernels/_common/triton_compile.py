"""Compiles Triton kernels for any NVIDIA GPU, present or not, and says what they need of it."""

import contextlib
import functools
import hashlib
import io
import logging
import re
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from attn_tune.kernels._common.triton_launch import CompileOptions, Launch
from attn_tune.kernels._common.triton_target import check_capability
from attn_tune.schema.errors import AttnTuneError, UnsupportedError

WARP_SIZE = 32
MAX_THREADS = 1024
# Columns of tensor memory of one Blackwell SM (PTX ISA, tcgen05).
MAX_TENSOR_MEMORY = 512
# Bytes of shared memory one block can opt in to (CUDA C++ programming guide, table of compute capabilities).
MAX_SHARED_BYTES = {
    80: 166_912,
    86: 101_376,
    87: 166_912,
    89: 101_376,
    90: 232_448,
    100: 232_448,
    101: 232_448,
    103: 232_448,
    110: 232_448,
    120: 101_376,
    121: 101_376,
}
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
UNITS = {
    "shared memory": "bytes of shared memory",
    "tensor memory": "columns of tensor memory",
    "threads": "threads a block",
    "registers": "registers a thread",
}
KEPT_IN_PROCESS = 512

_LOG = logging.getLogger(__name__)


class CompileError(AttnTuneError):
    """Triton or ptxas refused a kernel, for the reason given."""


class OutOfResources(AttnTuneError):
    """A kernel compiles, but the GPU cannot hold one block of it.

    Attributes:
      needed, limit: how much it takes and how much there is.
      resource: ``"shared memory"`` in bytes, ``"tensor memory"`` in columns, ``"threads"`` a block, ``"registers"`` a thread.
    """

    def __init__(self, kernel: str, capability: int, needed: int, limit: int, resource: str):
        super().__init__(
            f"kernel {kernel!r} on sm_{capability} needs {needed} {UNITS[resource]}, more than the limit of {limit}; "
            "choose smaller tiles or fewer stages"
        )
        self.needed, self.limit, self.resource = needed, limit, resource


@dataclass(frozen=True, kw_only=True)
class CompiledKernel:
    """One kernel for one GPU.

    Attributes:
      name: the PTX entry point.
      capability: ``10 * major + minor``.
      num_warps: warps a block is launched with: those asked for and those that warp specialisation added.
      shared_bytes: dynamic shared memory a block.
      scratch_bytes, scratch_align: global memory a block, which on-device tensor descriptors use.
      digest: SHA-256 of what is generated, without debug information; equal digests run equally.
    """

    name: str
    capability: int
    num_warps: int
    num_ctas: int
    shared_bytes: int
    tensor_memory: int
    scratch_bytes: int
    scratch_align: int
    digest: str
    ptx: str = field(repr=False)
    cubin: bytes = field(repr=False)

    @property
    def registers(self) -> int:
        """Registers a thread, as Triton's ptxas allots them; XLA's, which makes what runs, may differ a little."""
        return self._usage[0]

    @property
    def spill_bytes(self) -> int:
        """Bytes of local memory a thread, which is where spilled registers live."""
        return self._usage[1]

    @functools.cached_property
    def _usage(self) -> tuple[int, int]:
        return _resource_usage(self.cubin, self.name)


def compile_kernel(launch: Launch, in_dtypes: tuple[str, ...], capability: int) -> CompiledKernel:
    """Compiles the kernel of ``launch``, or finds it in this process or in Triton's cache on disk. Needs no GPU.

    Launches that differ in shapes and grid only share one compile.

    Args:
      in_dtypes: dtype names of the operands that are present.

    Raises:
      CompileError: Triton or ptxas refuses the kernel, or a dtype has no Triton type.
      OutOfResources: one block needs more than the GPU has.
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
    compiled = _IN_PROCESS.get(key)
    if compiled is None:
        compiled = _compile(launch, dtypes, capability)
        _IN_PROCESS.put(key, compiled)
    recorded = _RECORDED.get()
    if recorded is not None and compiled not in recorded:
        recorded.append(compiled)
    _check_resources(launch.name, compiled)
    return compiled


@contextlib.contextmanager
def record_compiles() -> Iterator[list[CompiledKernel]]:
    """The kernels that are lowered inside, each once, those that turn out to be too big among them.

    What was traced before is traced anew inside, so that nothing is missed.
    """
    recorded: list[CompiledKernel] = []
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
        self._lock = threading.Lock()

    def get(self, key: _CompileKey) -> CompiledKernel | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: _CompileKey, compiled: CompiledKernel) -> None:
        with self._lock:
            self._kept[key] = compiled
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)


_IN_PROCESS = _RecentlyUsed(KEPT_IN_PROCESS)
_RECORDED: ContextVar[list[CompiledKernel] | None] = ContextVar("recorded_compiles", default=None)


@functools.cache
def recording_context() -> Any:
    """A part of the key of jax's caches that is new in every recording, so that nothing is found there."""
    import jax

    return jax.make_user_context(None)


def _compile(launch: Launch, dtypes: tuple[str, ...], capability: int) -> CompiledKernel:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    pointers = dict(zip(launch.pointer_names, dtypes, strict=True))
    names = launch.kernel.arg_names
    source = ASTSource(
        launch.kernel,
        signature={n: _pointer(n, pointers[n]) if n in pointers else "constexpr" for n in names},
        constexprs={(names.index(name),): value for name, value in launch.constants.items()},
        # XLA aligns every buffer to more than 16 bytes; without the hint loads are not vectorised.
        attrs={(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if n in pointers},
    )
    printed = io.StringIO()
    try:
        # Triton prints the whole PTX on standard output when ptxas fails.
        with contextlib.redirect_stdout(printed):
            built = triton.compile(
                source, GPUTarget("cuda", capability, WARP_SIZE), _options(launch)
            )
    except Exception as error:
        # Triton's errors share no base class: its own, MLIR's RuntimeError, AssertionErrors of the front end.
        _LOG.debug("%s", printed.getvalue())
        raise _typed_error(launch.name, capability, error) from error
    sys.stdout.write(printed.getvalue())
    return _describe(built, capability)


def _typed_error(name: str, capability: int, error: Exception) -> AttnTuneError:
    text = str(error)
    registers = re.search(r"Insufficient registers \((\d+)\).*?target of (\d+)", text, re.DOTALL)
    if registers:
        limit, needed = map(int, registers.groups())
        return OutOfResources(name, capability, needed, limit, "registers")
    reason = textwrap.shorten(text, 1000) or type(error).__name__
    return CompileError(f"kernel {name!r} does not compile for sm_{capability}: {reason}")


def _options(launch: Launch) -> dict[str, Any]:
    options = launch.options
    chosen = {
        "num_warps": options.num_warps,
        "num_stages": options.num_stages,
        "num_ctas": options.num_ctas,
        # Said aloud because Triton is changing its default.
        "enable_fp_fusion": True,
    }
    return chosen if options.maxnreg is None else {**chosen, "maxnreg": options.maxnreg}


def _pointer(name: str, dtype: str) -> str:
    if dtype not in TRITON_TYPES:
        raise UnsupportedError(
            f"{name!r} is an array of {dtype}, which Triton has no type for; it has {', '.join(TRITON_TYPES)}"
        )
    return "*" + TRITON_TYPES[dtype]


def _describe(built: Any, capability: int) -> CompiledKernel:
    metadata, ptx = built.metadata, built.asm["ptx"]
    # A warp-specialised kernel has more warps than were asked for; the PTX says how many threads it wants.
    threads = re.search(r"\.reqntid\s+(\d+)", ptx)
    num_warps = int(threads[1]) // WARP_SIZE if threads else metadata.num_warps
    return CompiledKernel(
        name=metadata.name,
        capability=capability,
        num_warps=num_warps,
        num_ctas=metadata.num_ctas,
        shared_bytes=metadata.shared,
        tensor_memory=getattr(metadata, "tmem_size", None) or 0,
        scratch_bytes=metadata.global_scratch_size,
        scratch_align=metadata.global_scratch_align,
        digest=_code_digest(ptx, num_warps, metadata.num_ctas, metadata.shared),
        ptx=ptx,
        cubin=built.asm["cubin"],
    )


def _code_digest(ptx: str, *launch: int) -> str:
    # Debug sections hold the kernel's path and line numbers, which differ between hosts with equal code.
    code = ptx.partition(".section")[0]
    code = re.sub(r"^\s*(//|\.loc\b|\.file\b).*$", "", code, flags=re.MULTILINE)
    code = re.sub(r"\s*//.*$|^\s*\n", "", code, flags=re.MULTILINE)
    return hashlib.sha256(f"{launch}\n{code}".encode()).hexdigest()


def _check_resources(name: str, compiled: CompiledKernel) -> None:
    capability, threads = compiled.capability, compiled.num_warps * WARP_SIZE
    needs = (
        (
            compiled.shared_bytes,
            MAX_SHARED_BYTES.get(capability, max(MAX_SHARED_BYTES.values())),
            "shared memory",
        ),
        (compiled.tensor_memory, MAX_TENSOR_MEMORY, "tensor memory"),
        (threads, MAX_THREADS, "threads"),
    )
    for needed, limit, resource in needs:
        if needed > limit:
            raise OutOfResources(name, capability, needed, limit, resource)


def _resource_usage(cubin: bytes, kernel: str) -> tuple[int, int]:
    """Registers and bytes of local memory a thread, from the cuobjdump that Triton ships."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        listing = subprocess.run(
            [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    found = re.search(
        rf"Function {re.escape(kernel)}:\s*REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", listing
    )
    if not found:
        raise CompileError(f"cuobjdump does not list kernel {kernel!r}: {listing.strip()!r}")
    registers, stack, local = map(int, found.groups())
    return registers, stack + local
