"""Limits of one block of a Triton kernel on each NVIDIA GPU, and the errors of one that exceeds them."""

import functools
import importlib.metadata
import importlib.util
import os
import re
import textwrap
from typing import Any

from attn_tune.devices.environments import ASSEMBLER_VARIABLES, assembler, distribution_version
from attn_tune.ops.fields.cache import CODES, LATENT, PACKED
from attn_tune.schema.device import Device
from attn_tune.schema.errors import AttnTuneError

DECIDES_NO_CODE = "refuses what does not fit, and changes nothing that does"

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
UNITS = {
    "shared memory": "bytes of shared memory",
    "tensor memory": "columns of tensor memory",
    "threads": "threads a block",
    "registers": "registers a thread",
}


# Compute capabilities of the oldest GPUs that kernels run on, and that have conversions to and from float8.
OLDEST, OLDEST_WITH_FLOAT8, OLDEST_WITH_CLUSTERS = 80, 89, 90
# The oldest assembler by which kernels with gates a channel were right; by that of CUDA 12.8 they were not.
_PROVEN_ASSEMBLER = (12, 9)
# On data-centre Blackwell: the oldest Triton whose products of float32 and over chunks fit tensor memory, and the
# oldest whose tiles of latents fit shared memory beside it.
OLDEST_WITH_TENSOR_MEMORY, _OLDEST_WITH_LATENTS = (3, 8), (3, 9)
# The widest heads of float32 that older ones fit.
_MOST_FLOAT32 = 64
# The oldest Triton that copies rows of latents as they are aligned, and the bytes that older ones copy at a time.
_OLDEST_FOR_ANY_ROWS, _COPIED = (3, 7), 16
# Triton has two assemblers: a newer one for GPUs from Blackwell on, and since this version for Hopper too.
_NEWER_ON_HOPPER, _HOPPER, _BLACKWELL = (3, 9), 90, 100


def refuses_device(device: Device) -> str | None:
    """The reason that no kernel of Triton runs on this device, or None."""
    capability = device.compute_capability
    if capability is None:
        return f"Triton kernels need an NVIDIA GPU; {device} is a {device.platform} device"
    if capability < OLDEST:
        return f"needs compute capability 8.0 (Ampere) or later; {device} is {device.family}"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed; pip install 'attn-tune[cuda]'"
    return None


@functools.cache
def refuses_triton(oldest: tuple[int, int]) -> str | None:
    """The reason that the installed Triton is none from ``oldest`` on, or None."""
    # PyTorch's nightly builds come with one of another name.
    version = distribution_version("triton") or distribution_version("pytorch-triton")
    found = re.match(r"(\d+)(?:\.(\d+))?", version)
    if found is None:
        return "triton is not installed; pip install 'attn-tune[cuda]'"
    if (int(found[1]), int(found[2] or 0)) < oldest:
        wanted = ".".join(map(str, oldest))
        return f"it needs Triton {wanted} or later; {version} is installed: pip install --upgrade triton"
    return None


def refuses_assembler(device: Device) -> str | None:
    """The reason that what assembles kernels for this device is none that was right for all, or None.

    On an H200 that of CUDA 12.8 made wrong code of kernels with gates a channel, and those of CUDA 12.9 and 13.0 right
    code (``benchmarks/results/h200/assembler_of_12_8.txt``).
    """
    variable, version = _assembler_taken(device.compute_capability or 0)
    if not version or tuple(map(int, version.split(".")[:2])) >= _PROVEN_ASSEMBLER:
        return None
    of_jax = _assembler_of_jax()
    such = f", such as {of_jax}" if of_jax else ""
    oldest = ".".join(map(str, _PROVEN_ASSEMBLER))
    return (
        f"it needs the assembler of CUDA {oldest} or later, and would have ptxas {version}; by an older one results "
        f"were wrong: name a newer one by {variable}{such}"
    )


def _assembler_taken(capability: int) -> tuple[str, str]:
    """The variable that names Triton's assembler for a GPU, and the version of the one that Triton takes, or ``""``.

    As Triton finds it (``get_ptxas`` of ``triton.backends.nvidia.compiler``), without importing Triton.
    """
    has_newer = capability >= (_BLACKWELL if refuses_triton(_NEWER_ON_HOPPER) else _HOPPER)
    variable = ASSEMBLER_VARIABLES[has_newer]
    package = importlib.util.find_spec("triton")
    folders = (package and package.submodule_search_locations) or ()
    name = "ptxas-blackwell" if has_newer else "ptxas"
    own = (os.path.join(folder, "backends", "nvidia", "bin", name) for folder in folders)
    # Triton takes its own where the other one does not run.
    paths = (os.environ.get(variable, ""), *own) if capability else ()
    return variable, next(filter(None, map(_version_of, paths)), "")


@functools.cache
def _version_of(path: str) -> str:
    """The version of an assembler, ``""`` of what is none."""
    return assembler(path).removeprefix("ptxas ")


def _assembler_of_jax() -> str:
    """The path of the assembler in JAX's wheels for CUDA 13, ``""`` without them."""
    try:
        path = str(importlib.metadata.distribution("nvidia-cuda-nvcc").locate_file("nvidia/cu13/bin/ptxas"))
    except importlib.metadata.PackageNotFoundError:
        return ""
    return path if os.path.exists(path) else ""


def refuses_cache(cache_dtype: str, device: Device) -> str | None:
    """The reason that no kernel of Triton reads or writes a cache of this dtype on this device, or None."""
    if cache_dtype == "float8_e4m3fn" and (device.compute_capability or 0) < OLDEST_WITH_FLOAT8:
        return f"kv={cache_dtype} needs compute capability 8.9 or later; {device} is {device.family}"
    return None


def refuses_tensor_memory(device: Device, oldest: tuple[int, int]) -> str | None:
    """The reason that the installed Triton is too old for products in the tensor memory of a device, or None."""
    return refuses_triton(oldest) if has_tensor_memory(device) else None


def refuses_float32(problem: Any, device: Device) -> str | None:
    """The reason that attention with these widths of float32 does not fit the tensor memory of a device, or None."""
    if problem.dtype != "float32" or max(problem.head_dim, problem.v_head_dim) <= _MOST_FLOAT32:
        return None
    return refuses_tensor_memory(device, OLDEST_WITH_TENSOR_MEMORY)


def refuses_latents(problem: Any, device: Device) -> str | None:
    """The reason that the installed Triton is too old for these latents on this device, or None.

    Where a tile has tokens of several pages, Triton 3.6 takes their rows for multiples of 16 bytes in one of two loops
    (the ``contiguity`` of ``async_copy_global_to_local`` in its TTGIR), and copies from addresses that it must not.
    """
    if problem.layout != LATENT:
        return None
    size = 1 if problem.cache_dtype in (PACKED, *CODES) else 4 if problem.cache_dtype == "float32" else 2
    row = problem.cache_width * size
    if problem.page_size and row % _COPIED and (reason := refuses_triton(_OLDEST_FOR_ANY_ROWS)):
        return f"its rows of {row} bytes are no multiple of {_COPIED}: {reason}"
    return refuses_tensor_memory(device, _OLDEST_WITH_LATENTS)


def shared_limit(device: Device) -> int:
    """Bytes of shared memory one block may use; the least there is on a device that is not known."""
    known = MAX_SHARED_BYTES.get(device.compute_capability or 0, min(MAX_SHARED_BYTES.values()))
    return device.shared_bytes or known


def has_tensor_memory(device: Device) -> bool:
    """Whether products accumulate in a memory of its own, as on data-centre Blackwell."""
    return device.compute_capability in (100, 103, 110)


class CompileError(AttnTuneError):
    """Triton or ptxas refused a kernel, for the reason given."""


class OutOfResources(AttnTuneError):
    """A kernel compiles, but the GPU cannot hold one block of it.

    Attributes:
      needed, limit: how much it takes and how much there is.
      resource: ``"shared memory"`` in bytes, ``"tensor memory"`` in columns, ``"threads"`` a block, or
        ``"registers"`` a thread.
    """

    def __init__(self, kernel: str, capability: int, needed: int, limit: int, resource: str):
        super().__init__(
            f"kernel {kernel!r} on sm_{capability} needs {needed} {UNITS[resource]}, more than the limit of {limit}; "
            "choose smaller tiles or fewer stages"
        )
        self.needed, self.limit, self.resource = needed, limit, resource


def check_limits(kernel: str, capability: int, *, shared_bytes: int, tensor_memory: int, num_warps: int) -> None:
    """Raises OutOfResources for the first thing that one block needs too much of."""
    # An unknown GPU gets the largest limit: refusing what would run is worse than failing at the launch.
    shared_limit = MAX_SHARED_BYTES.get(capability, max(MAX_SHARED_BYTES.values()))
    needs = (
        (shared_bytes, shared_limit, "shared memory"),
        (tensor_memory, MAX_TENSOR_MEMORY, "tensor memory"),
        (num_warps * WARP_SIZE, MAX_THREADS, "threads"),
    )
    for needed, limit, resource in needs:
        if needed > limit:
            raise OutOfResources(kernel, capability, needed, limit, resource)


def typed_error(name: str, capability: int, error: Exception) -> CompileError | OutOfResources:
    """Converts an error of Triton or ptxas to one of the two errors here."""
    text = str(error)
    registers = re.search(r"Insufficient registers \((\d+)\).*?target of (\d+)", text, re.DOTALL)
    if registers:
        limit, needed = map(int, registers.groups())
        return OutOfResources(name, capability, needed, limit, "registers")
    reason = textwrap.shorten(text, 1000) or type(error).__name__
    cause = _innermost(error)
    if cause is not error:
        # Triton says where in the outermost function, and what is wrong only in the innermost one.
        reason = f"{textwrap.shorten(str(cause), 500)} ({reason})"
    return CompileError(f"kernel {name!r} does not compile for sm_{capability}: {reason}")


def _innermost(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error
