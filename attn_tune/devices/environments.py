"""Versions of the software, read from installed metadata: nothing is imported to find its version."""

import functools
import importlib.metadata

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
    for name in _COMPILERS:
        if version := distribution_version(name):
            return f"{name} {version}"
    if version := cuda_driver.driver_cuda_version():
        return f"cuda-driver {version}"
    return UNKNOWN


def distribution_version(distribution: str) -> str:
    """The installed version, ``""`` without one."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return UNKNOWN
