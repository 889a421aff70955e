"""Versions of the software, read from installed metadata: nothing is imported to find its version."""

import functools
import importlib.metadata
import os

from attn_tune.devices import cuda_driver
from attn_tune.schema.environment import UNKNOWN, Environment

# Who carries the compiler that turns kernels into machine code, most telling first.
_COMPILERS = (
    "nvidia-cuda-nvcc",
    "nvidia-cuda-nvcc-cu13",
    "nvidia-cuda-nvcc-cu12",
    "jax-cuda13-plugin",
    "jax-cuda12-plugin",
    "libtpu",
)
# Has more options for assemblers of Triton.
_ASSEMBLER_OPTIONS = "PTXAS_OPTIONS"
# Name an assembler to take in place of the one in Triton, which has one of older and one of newer GPUs.
ASSEMBLER_VARIABLES = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")


@functools.cache
def current_environment() -> Environment:
    """The software of this process, without any kernel's source hash (see ``KernelSpec.environment``)."""
    return Environment(
        jax=distribution_version("jax"),
        jaxlib=distribution_version("jaxlib"),
        triton=distribution_version("triton") or distribution_version("pytorch-triton"),
        compiler=_compiler(),
        driver=cuda_driver.driver_version(),
        attn_tune=distribution_version("attn-tune"),
    )


def cudnn_version() -> str:
    """The version of the installed wheel of cuDNN; ``""`` without one."""
    return distribution_version("nvidia-cudnn-cu13") or distribution_version("nvidia-cudnn-cu12")


def _compiler() -> str:
    versions = (f"{name} {version}" for name in _COMPILERS if (version := distribution_version(name)))
    found = next(versions, UNKNOWN)
    if not found and (driver := cuda_driver.driver_cuda_version()):
        found = f"cuda-driver {driver}"
    # Triton's version says which assembler it comes with, and it takes that where a variable names none.
    others = {assembler(os.environ.get(name, "")) for name in ASSEMBLER_VARIABLES}
    others.add(os.environ.get(_ASSEMBLER_OPTIONS, ""))
    return ", ".join(filter(None, (found, *(f"{other} for Triton" for other in sorted(others - {""})))))


def assembler(path: str) -> str:
    """The name and version of an assembler, such as ``ptxas 12.9.86``; ``""`` of a file that Triton takes for none."""
    if not path:
        return UNKNOWN
    import re
    import subprocess

    run = functools.partial(subprocess.run, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True)
    try:
        output = run([path, "--version"]).stdout.decode()
    except (OSError, ValueError, subprocess.SubprocessError):
        return UNKNOWN
    found = re.search(r"release \d+\.\d+, V(\d+(?:\.\d+)*)", output)
    return f"ptxas {found[1]}" if found else UNKNOWN


def distribution_version(distribution: str) -> str:
    """The installed version, ``""`` without one."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return UNKNOWN
