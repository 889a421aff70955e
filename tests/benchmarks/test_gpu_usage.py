"""Samples of how busy a GPU is, from programs and libraries that stand in for the driver's."""

import importlib.machinery
import os
import sys
import threading
import time
import types

import gpu_usage
import pytest

from tests.patience import until


def test_only_samples_of_the_call_count_as_its_usage():
    samples = [(9.9, 100.0), (10.0, 100.0), (12.0, 50.0), (13.9, 0.0), (14.1, 100.0)]
    assert gpu_usage.idle_share(samples, 10.0, 14.0) == pytest.approx(0.5)
    assert gpu_usage.idle_share(samples, 20.0, 30.0) is None


@pytest.mark.parametrize(
    ("line", "percent"),
    [("37\n", 37.0), ("100 %\n", 100.0), ("0", 0.0), ("[N/A]\n", None), ("", None)],
)
def test_lines_of_nvidia_smi(line, percent):
    assert gpu_usage.parse_percent(line) == percent


def no_pynvml(monkeypatch):
    real = gpu_usage.importlib.util.find_spec
    monkeypatch.setattr(gpu_usage.importlib.util, "find_spec", lambda n: None if n == "pynvml" else real(n))


def test_nvidia_smi_is_read_line_by_line_and_ended(monkeypatch, tmp_path):
    no_pynvml(monkeypatch)
    pid = tmp_path / "pid"
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\necho $$ > {pid}\necho '[N/A]'\nwhile :; do echo 25; sleep 0.02; done\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    start = time.monotonic()
    with gpu_usage.sampling() as samples:
        until(lambda: len(samples) >= 3)
    assert gpu_usage.idle_share(samples, start, time.monotonic()) == pytest.approx(0.75)
    until(lambda: ended(int(pid.read_text())))


def ended(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("works", [True, False])
def test_nvml_is_preferred_and_its_failure_leaves_no_samples(monkeypatch, works):
    class NVMLError(Exception):
        pass

    def start():
        if not works:
            raise NVMLError("driver not loaded")

    asked = []
    nvml = types.ModuleType("pynvml")
    nvml.__spec__ = importlib.machinery.ModuleSpec("pynvml", None)
    nvml.NVMLError = NVMLError
    nvml.nvmlInit = start
    nvml.nvmlDeviceGetHandleByUUID = lambda uuid: asked.append(uuid) or uuid
    nvml.nvmlDeviceGetUtilizationRates = lambda handle: types.SimpleNamespace(gpu=80, memory=3)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-77,1")
    monkeypatch.setattr(gpu_usage, "PERIOD_S", 0.01)
    with gpu_usage.sampling() as samples:
        if works:
            until(lambda: len(samples) >= 2)
    assert {percent for _, percent in samples} == ({80.0} if works else set())
    assert asked == (["GPU-77"] if works else [])


def test_no_gpu_gives_no_samples(monkeypatch, tmp_path):
    no_pynvml(monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    with gpu_usage.sampling() as samples:
        time.sleep(0.05)
    assert samples == []
    until(lambda: not [t for t in threading.enumerate() if t.name == "gpu-usage"])
