"""Facts about a device from the NVIDIA driver, through its C libraries. Every question may go unanswered.

Nothing here creates a CUDA context: attributes are read by ordinal or PCI address only, so that asking never
takes device memory and never disturbs the process that owns the device.
"""

import ctypes
import functools
from dataclasses import dataclass

# CUdevice_attribute values (cuda.h).
_CLOCK_KHZ = 13
_MEMORY_CLOCK_KHZ = 36
_BUS_BITS = 37
_L2_BYTES = 38
_SHARED_OPTIN = 97
_PCI_DOMAIN, _PCI_BUS, _PCI_DEVICE = 50, 33, 34
_SM_COUNT = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverFacts:
    """One device as the driver describes it; 0 and ``""`` where it does not answer.

    Attributes:
      units: the multiprocessors.
      shared_bytes: the most shared memory of a block.
      l2_bytes: the last-level cache.
      clock_mhz: the top clock.
      bandwidth_gbs: the memory bandwidth.
      power_watts: the power limit, rounded to 50 W.
      uuid: the device's own id.
      total_bytes: the memory.
      driver: the version of the driver.
    """

    units: int = 0
    shared_bytes: int = 0
    l2_bytes: int = 0
    clock_mhz: int = 0
    bandwidth_gbs: int = 0
    power_watts: int = 0
    uuid: str = ""
    total_bytes: int = 0
    driver: str = ""


@functools.cache
def driver_facts(ordinal: int) -> DriverFacts:
    """Facts of the CUDA device ``ordinal`` in this process's numbering; all unknown without a driver."""
    cuda = _library("libcuda.so.1")
    if cuda is None or cuda.cuInit(0) != 0:
        return DriverFacts()
    device = ctypes.c_int()
    if cuda.cuDeviceGet(ctypes.byref(device), ordinal) != 0:
        return DriverFacts()

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        code = cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        return value.value if code == 0 else 0

    uuid = (ctypes.c_ubyte * 16)()
    # The v2 call names a MIG slice by its own uuid; older drivers have only the first.
    get_uuid = getattr(cuda, "cuDeviceGetUuid_v2", None) or cuda.cuDeviceGetUuid
    has_uuid = get_uuid(ctypes.byref(uuid), device) == 0
    total = ctypes.c_size_t()
    has_total = cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device) == 0
    bus_id = f"{attribute(_PCI_DOMAIN):08x}:{attribute(_PCI_BUS):02x}:{attribute(_PCI_DEVICE):02x}.0"
    power, driver = _management_facts(bus_id)
    # Two transfers a clock: every memory these devices use is double data rate.
    bandwidth = 2 * attribute(_MEMORY_CLOCK_KHZ) * attribute(_BUS_BITS) / 8 / 1e6
    return DriverFacts(
        units=attribute(_SM_COUNT),
        shared_bytes=attribute(_SHARED_OPTIN),
        l2_bytes=attribute(_L2_BYTES),
        clock_mhz=attribute(_CLOCK_KHZ) // 1000,
        bandwidth_gbs=round(bandwidth),
        power_watts=power,
        uuid=_uuid_text(bytes(uuid)) if has_uuid else "",
        total_bytes=total.value if has_total else 0,
        driver=driver,
    )


@functools.cache
def driver_version() -> str:
    """The kernel driver's version, ``"580.65.06"``; ``""`` when it cannot be asked."""
    return _management_facts("")[1]


@functools.cache
def driver_cuda_version() -> str:
    """The newest CUDA the driver speaks, ``"13.0"``; ``""`` without a driver."""
    cuda = _library("libcuda.so.1")
    version = ctypes.c_int()
    if cuda is None or cuda.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return ""
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def power_class(milliwatts: int) -> int:
    """A power limit rounded to 50 W: boards of one class share results."""
    return round(milliwatts / 1000 / 50) * 50


def _management_facts(bus_id: str) -> tuple[int, str]:
    """(power class in watts, driver version) from NVML."""
    nvml = _library("libnvidia-ml.so.1")
    if nvml is None or nvml.nvmlInit_v2() != 0:
        return 0, ""
    try:
        text = ctypes.create_string_buffer(96)
        ok = nvml.nvmlSystemGetDriverVersion(text, len(text)) == 0
        version = text.value.decode(errors="replace") if ok else ""
        handle, limit = ctypes.c_void_p(), ctypes.c_uint()
        if not bus_id:
            return 0, version
        if nvml.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), ctypes.byref(handle)) != 0:
            return 0, version
        if nvml.nvmlDeviceGetEnforcedPowerLimit(handle, ctypes.byref(limit)) != 0:
            return 0, version
        return power_class(limit.value), version
    finally:
        nvml.nvmlShutdown()


@functools.cache
def _library(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _uuid_text(raw: bytes) -> str:
    h = raw.hex()
    return f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"
