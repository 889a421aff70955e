"""The GPU that Triton kernels are compiled for: the one of this process, or one that is named."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from attn_tune.devices.identity import DEVICE_AS, current_device
from attn_tune.schema.errors import UnsupportedError, UsageError

DECIDES_NO_CODE = "the GPU to compile for; a row holds the device"


@contextmanager
def compile_target(capability: int) -> Iterator[None]:
    """Lowers Triton kernels for another GPU than this process has, e.g. ``compile_target(90)`` for an H200.

    What is traced inside is cached apart from what is traced outside.

    Raises:
      UsageError: ``capability`` is not ``10 * major + minor`` of an Ampere GPU or later.
    """
    check_capability(capability)
    with target_context()(capability):
        yield


def check_capability(capability: int) -> int:
    """``capability`` itself, when kernels here can be compiled for it."""
    if not isinstance(capability, int) or not 80 <= capability < 200:
        raise UsageError(
            f"compute capability {capability!r} is not one; give 10 * major + minor, 80 or more: 90 for an H200"
        )
    return capability


def target_capability() -> int:
    """The compute capability to compile for, as ``10 * major + minor``.

    That of ``compile_target``, of this process's GPU or, without one, of the GPU that ``ATTN_TUNE_DEVICE_AS`` names.

    Raises:
      UnsupportedError: no target is named and this process has no NVIDIA GPU, or has unlike ones.
    """
    named = target_context().value
    return named if named is not None else _device_capability()


@cache
def target_context() -> Any:
    """The named capability, as part of the key of jax's caches; made before anything that depends on it is traced."""
    import jax

    return jax.make_user_context(None)


def _device_capability() -> int:
    import jax

    try:
        devices = jax.local_devices(backend="gpu")
    except RuntimeError as error:
        named = current_device().compute_capability
        if named is None:
            raise UnsupportedError(
                "a Triton kernel needs an NVIDIA GPU and this process has none; to lower for one elsewhere set "
                f"{DEVICE_AS}, such as nvidia-h200"
            ) from error
        return check_capability(named)
    found = sorted({str(device.compute_capability) for device in devices})
    if len(found) > 1:
        raise UnsupportedError(
            f"the GPUs of this process differ in compute capability ({', '.join(found)}); "
            "make only equal ones visible (CUDA_VISIBLE_DEVICES)"
        )
    major, _, minor = found[0].partition(".")
    return check_capability(10 * int(major) + int(minor))
