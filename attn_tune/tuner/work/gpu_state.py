"""Clock, temperature, power and throttling of the present GPU, through NVML (the ``nvidia-ml-py`` package)."""

import contextlib
import importlib.util
import logging
from collections.abc import Callable
from typing import Any

from attn_tune.schema.conditions import Reading
from attn_tune.schema.device import Device

logger = logging.getLogger(__name__)

type Look = Callable[[], Reading | None]

# nvmlClocksEventReasons*, NVML API reference; "idle" and clocks that were set are not reported.
_REASONS = {
    0x0000000000000004: "sw_power_cap",
    0x0000000000000008: "hw_slowdown",
    0x0000000000000010: "sync_boost",
    0x0000000000000020: "sw_thermal_slowdown",
    0x0000000000000040: "hw_thermal_slowdown",
    0x0000000000000080: "hw_power_brake",
}


def nothing() -> None:
    """A look at a device that cannot be looked at."""
    return


def open_look(device: Device) -> Look:
    """A function that reads the state of ``device``; one that always says None where NVML cannot be asked."""
    if device.platform != "cuda" or importlib.util.find_spec("pynvml") is None:
        return nothing
    import pynvml

    uuid = dict(device.evidence).get("uuid", "")
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError as error:
        logger.info("the state of %s (%s) is not recorded: %s", device, uuid, error)
        return nothing
    return lambda: read(pynvml, handle)


def read(nvml: Any, handle: Any) -> Reading:
    """One reading; what the device does not tell is None."""

    def ask(question: Callable[..., int], *args: Any) -> int | None:
        # A MIG slice or a vGPU answers some questions only.
        with contextlib.suppress(nvml.NVMLError):
            return question(handle, *args)
        return None

    power_mw = ask(nvml.nvmlDeviceGetPowerUsage)
    reasons = ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
    return Reading(
        sm_clock_mhz=ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
        memory_clock_mhz=ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
        temperature_c=ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
        power_w=None if power_mw is None else round(power_mw / 1000),
        throttle=tuple(name for bit, name in _REASONS.items() if reasons & bit),
    )
