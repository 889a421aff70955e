"""The version of cuDNN that a process would load."""

import ctypes
import functools
import importlib.metadata


@functools.cache
def cudnn_version() -> tuple[int, int, int] | None:
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
