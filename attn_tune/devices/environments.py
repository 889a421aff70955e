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
# Variables that name an assembler to take in place of Triton's own one of older, and of newer GPUs.
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
    """The package or driver with the compiler, and what assembles Triton's code if it is not as Triton has it."""
    return ", ".join(filter(None, (_packaged_compiler(), *_assembled_by())))


def _packaged_compiler() -> str:
    for name in _COMPILERS:
        if version := distribution_version(name):
            return f"{name} {version}"
    if version := cuda_driver.driver_cuda_version():
        return f"cuda-driver {version}"
    return UNKNOWN


def _assembled_by() -> list[str]:
    """Assemblers and options that variables give Triton; it takes its own where a variable names none that runs."""
    paths = {os.environ.get(name, "") for name in ASSEMBLER_VARIABLES}
    found = {assembler(path) for path in paths} | {os.environ.get("PTXAS_OPTIONS", "")}
    return [f"{one} for Triton" for one in sorted(found - {""})]


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
        # None where its metadata is broken, which no type says.
        return importlib.metadata.version(distribution) or UNKNOWN
    except importlib.metadata.PackageNotFoundError:
        return UNKNOWN
