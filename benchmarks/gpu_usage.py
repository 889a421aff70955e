"""Utilization of a GPU from another process: the driver's counter, sampled at 10 Hz.

A sample is the percentage of the driver's last sampling period (a sixth of a second to a second, by product) in which
some kernel ran; it says nothing about how much of the GPU the kernel used, nor whose it was. Its average over a time is
therefore the share of that time in which a kernel ran, if no other process uses the GPU.
"""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence

PERIOD_S = 0.1

type Sample = tuple[float, float]  # time.monotonic(), percent


def idle_share(samples: Sequence[Sample], start_s: float, end_s: float) -> float | None:
    """The share of the time from ``start_s`` to ``end_s`` in which no kernel ran; None without samples in it."""
    seen = [percent for at, percent in samples if start_s <= at <= end_s]
    return 1 - sum(seen) / len(seen) / 100 if seen else None


@contextlib.contextmanager
def sampling() -> Iterator[list[Sample]]:
    """Samples into the list it yields, from NVML if pynvml is there, else from nvidia-smi; nothing without either."""
    samples: list[Sample] = []
    stop = threading.Event()

    def collect() -> None:
        readings = _nvml(stop) if importlib.util.find_spec("pynvml") else _nvidia_smi(stop)
        for percent in readings:
            samples.append((time.monotonic(), percent))

    thread = threading.Thread(target=collect, name="gpu-usage", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join(5)


def parse_percent(line: str) -> float | None:
    """A line of nvidia-smi's CSV: ``37`` or ``37 %``; None for ``[N/A]``."""
    text = line.strip().removesuffix("%").strip()
    return float(text) if text.isdigit() else None


def visible_gpu() -> str:
    """The GPU that a process started here would use: an index, or a UUID."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"


def _nvml(stop: threading.Event) -> Iterator[float]:
    import pynvml

    gpu = visible_gpu()
    try:
        pynvml.nvmlInit()
        find = "nvmlDeviceGetHandleByIndex" if gpu.isdigit() else "nvmlDeviceGetHandleByUUID"
        handle = getattr(pynvml, find)(int(gpu) if gpu.isdigit() else gpu)
        while not stop.wait(PERIOD_S):
            yield float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except pynvml.NVMLError:
        return  # No driver, or a GPU (a MIG slice) that has no such counter: no samples.


def _nvidia_smi(stop: threading.Event) -> Iterator[float]:
    if shutil.which("nvidia-smi") is None:
        return
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    process = subprocess.Popen(
        [*query, "-i", visible_gpu(), "-lms", str(round(PERIOD_S * 1000))],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        for line in process.stdout or ():
            if stop.is_set():
                return
            percent = parse_percent(line)
            if percent is not None:
                yield percent
    finally:
        process.kill()
        process.wait()
