"""The device of a lookup: the one that a call would run on, or a named one that need not be present."""

import functools
import os
import platform as host
import re
from typing import Any

from attn_tune.devices import aliases, cuda_driver
from attn_tune.devices.figures import (
    FIGURES,
    MIB,
    REPRESENTATIVE,
    SHARED_BYTES,
    VMEM_BYTES,
    Figures,
)
from attn_tune.schema.device import Device
from attn_tune.schema.errors import UsageError, near_names
from attn_tune.schema.logs import log

DEVICE_AS = "ATTN_TUNE_DEVICE_AS"

_PLATFORMS = {"gpu": "cuda", "cuda": "cuda", "rocm": "rocm", "tpu": "tpu", "cpu": "cpu"}
_CAPABILITY = re.compile(r"sm_?(\d+)[af]?")


def current_device(jax_device: Any = None) -> Device:
    """The device of ``jax_device``, or the one JAX would use by default here.

    ``ATTN_TUNE_DEVICE_AS`` names another device to look decisions up for; it is logged once.

    Raises:
      UsageError: ``ATTN_TUNE_DEVICE_AS`` names an unknown device.
    """
    if override := os.environ.get(DEVICE_AS):
        return _override(override)
    if jax_device is None:
        return describe(default_jax_device())
    return describe(jax_device)


def default_jax_device() -> Any:
    """The JAX device that an array without a placement lands on."""
    import jax

    default = jax.config.jax_default_device
    if default is not None and not isinstance(default, str):
        return default
    # jax leaves the type of its devices unknown.
    return jax.local_devices(backend=default)[0]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


@functools.cache
def describe(jax_device: Any) -> Device:
    """The description of one JAX device."""
    kind: str = _PLATFORMS.get(jax_device.platform) or str(jax_device.platform)
    if kind == "cuda" and "rocm" in getattr(jax_device.client, "platform_version", "").lower():
        kind = "rocm"
    if kind == "cuda":
        return _cuda(jax_device)
    if kind == "cpu":
        return cpu_device()
    if kind == "tpu":
        return _tpu(jax_device)
    if kind == "rocm":
        return _rocm(jax_device)
    name = jax_device.device_kind
    return Device(platform=kind, family=name, variant=f"{kind}-{name}".lower().replace(" ", "-"))


def device_from_kind(kind: str) -> Device:
    """A device that need not be here, by variant (``"nvidia-h200"``), architecture (``"sm_90"``), raw name
    (``"TPU v6 lite"``) or ``"cpu"``.

    An architecture takes the limits of a common board of that architecture, and its own name as variant.

    Raises:
      UsageError: the name is unknown.
    """
    text = kind.strip().lower()
    if text == "cpu":
        return cpu_device()
    if text in ("cpu-x86_64", "cpu-aarch64", "cpu-arm64"):
        return Device(platform="cpu", family=text.removeprefix("cpu-"), variant=text)
    if match := _CAPABILITY.fullmatch(text):
        text = f"sm_{match.group(1)}"
    if text in SHARED_BYTES:
        return _target(text, text, REPRESENTATIVE.get(text, ""))
    found = aliases.alias(kind) or aliases.alias(f"NVIDIA {kind}") or aliases.alias(f"TPU {kind}")
    if found is None:
        raise _unknown(kind)
    return _target(found.variant, found.family, found.variant, found.partition)


def known_devices() -> dict[str, str]:
    """Every variant and architecture that ``device_from_kind`` knows by its own name, with its family."""
    architectures = {name: name for name in SHARED_BYTES}
    return {"cpu": cpu_device().family, **architectures, **aliases.variants()}


def _unknown(kind: str) -> UsageError:
    """There are too many devices to name them all: the near ones, and where the others are."""
    known = sorted(known_devices())
    # Without the vendor, where somebody has left it out: the name is read that way too.
    short = [name.partition("-")[2] for name in known if "-" in name]
    near = near_names(kind.lower(), known) or near_names(kind.lower(), short)
    every = "'attn-tune devices --all' lists those that are known"
    return UsageError(f"unknown device {kind!r}; {f'{near} ' if near else ''}{every}")


@functools.cache
def cpu_device() -> Device:
    """The host processor. Its model name is evidence: packs for CPUs match by architecture."""
    machine = host.machine().lower()
    return Device(
        platform="cpu",
        family=machine,
        variant=f"cpu-{machine}",
        units=os.cpu_count() or 0,
        evidence=(("name", _cpu_name()),),
    )


def _cuda(jax_device: Any) -> Device:
    raw = jax_device.device_kind
    found = aliases.variant_of(raw, "nvidia")
    capability = str(getattr(jax_device, "compute_capability", "")).replace(".", "")
    family = f"sm_{capability}" if capability.isdigit() else found.family
    facts = cuda_driver.driver_facts(int(getattr(jax_device, "local_hardware_id", 0) or 0))
    published = _target(found.variant, family, found.variant, found.partition)
    units = int(getattr(jax_device, "core_count", 0) or 0)
    return Device(
        platform="cuda",
        family=family,
        variant=found.variant,
        units=units or facts.units or published.units,
        shared_bytes=facts.shared_bytes or published.shared_bytes,
        l2_bytes=facts.l2_bytes or published.l2_bytes,
        clock_mhz=facts.clock_mhz or published.clock_mhz,
        bandwidth_gbs=facts.bandwidth_gbs or published.bandwidth_gbs,
        partition=found.partition,
        power_watts=facts.power_watts,
        evidence=_evidence(name=raw, uuid=facts.uuid, driver=facts.driver, total_bytes=facts.total_bytes),
    )


def _rocm(jax_device: Any) -> Device:
    raw = jax_device.device_kind
    found = aliases.variant_of(raw, "amd")
    family = str(getattr(jax_device, "compute_capability", "") or found.family)
    published = _target(found.variant, family, found.variant)
    return Device(
        platform="rocm",
        family=family,
        variant=found.variant,
        units=int(getattr(jax_device, "core_count", 0) or 0) or published.units,
        shared_bytes=published.shared_bytes,
        l2_bytes=published.l2_bytes,
        clock_mhz=published.clock_mhz,
        bandwidth_gbs=published.bandwidth_gbs,
        evidence=_evidence(name=raw),
    )


def _tpu(jax_device: Any) -> Device:
    raw = jax_device.device_kind
    found = aliases.variant_of(raw, "tpu")
    family = found.family or found.variant.removeprefix("tpu-")
    published = _target(found.variant, family, found.variant)
    return Device(
        platform="tpu",
        family=family,
        variant=found.variant,
        units=int(getattr(jax_device, "num_cores", 0) or getattr(jax_device, "core_count", 0) or 0) or published.units,
        shared_bytes=published.shared_bytes,
        clock_mhz=published.clock_mhz,
        bandwidth_gbs=published.bandwidth_gbs,
        evidence=_evidence(name=raw),
    )


def _target(variant: str, family: str, figures_of: str, partition: str = "") -> Device:
    platform = "tpu" if family.startswith("v") else "rocm" if family.startswith("gfx") else "cuda"
    unknown = Figures(0, 0, 0, 0, 0)
    # How much of its board a slice has is in no table.
    figures = unknown if partition else FIGURES.get(figures_of, unknown)
    memory = VMEM_BYTES if platform == "tpu" else SHARED_BYTES
    return Device(
        platform=platform,
        family=family,
        variant=variant,
        units=figures.units,
        shared_bytes=memory.get(family, 0),
        l2_bytes=figures.l2_mib * MIB,
        clock_mhz=figures.clock_mhz,
        bandwidth_gbs=figures.bandwidth_gbs,
        partition=partition,
        power_watts=figures.power_watts,
    )


@functools.cache
def _override(name: str) -> Device:
    device = device_from_kind(name)
    log.warning("%s=%s: decisions are looked up for %s, on any hardware", DEVICE_AS, name, device)
    return device


def _evidence(**facts: object) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(value)) for name, value in facts.items() if value)


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.lower().startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        # Not Linux: the standard library's word has to do.
        return host.processor()
    return host.processor()
