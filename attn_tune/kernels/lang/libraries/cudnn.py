"""The version of cuDNN that a process would load, and the devices that its fused attention runs on."""

import ctypes
import functools
import importlib.metadata

from attn_tune.schema.device import Device

type Version = tuple[int, int, int]


@functools.cache
def cudnn_version() -> Version | None:
    """The version that would be loaded: of the installed wheel, else of the system's library; None without either."""
    for package in ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"):
        try:
            parts = importlib.metadata.version(package).split(".")
        except importlib.metadata.PackageNotFoundError:
            continue
        major, minor, patch = (int(p) for p in (*parts, "0", "0")[:3])
        return major, minor, patch
    try:
        number = ctypes.CDLL("libcudnn.so.9").cudnnGetVersion()
    except OSError:
        return None
    return number // 10000, number // 100 % 100, number % 100


def refuses_device(device: Device, version: Version | None) -> str | None:
    """The reason that cuDNN's fused attention does not run on a device with this version of cuDNN, or None."""
    if device.platform != "cuda":
        return f"cuDNN runs on NVIDIA GPUs, not on {device.platform}"
    capability = device.compute_capability
    if capability is None or capability < 80:
        return f"cuDNN's fused attention needs compute capability 8.0, {device.family} has less"
    if version is None:
        return "cuDNN was not found: neither an nvidia-cudnn package nor libcudnn.so.9"
    return None
