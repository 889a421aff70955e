"""The state a device was in while it was measured."""

from collections.abc import Sequence
from dataclasses import dataclass

# Reasons for a slower clock that have nothing to do with what runs. A power cap is not among them: it comes and goes
# with the kernel, and is part of its time.
DISTURBED = frozenset(
    {"hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One look at a device; None is unknown. ``throttle`` are the reasons why its clock is not at its highest."""

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: int | None = None
    throttle: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """What a device went through during a measurement: lowest and highest reading of each, None where unknown.

    Attributes:
      throttle: reasons of a slower clock that were seen, in NVML's words.
      repeats: how often the measurement was thrown away and taken anew because the clock had moved.
    """

    sm_clock_mhz: tuple[int, int] | None = None
    memory_clock_mhz: tuple[int, int] | None = None
    temperature_c: tuple[int, int] | None = None
    power_w: tuple[int, int] | None = None
    throttle: tuple[str, ...] = ()
    repeats: int = 0

    def steady(self, tolerance: float) -> bool:
        """Whether the clock moved by no more than ``tolerance`` (a share), and nothing else slowed the device."""
        if DISTURBED.intersection(self.throttle):
            return False
        if self.sm_clock_mhz is None:
            return True
        low, high = self.sm_clock_mhz
        return low >= (1 - tolerance) * high


def conditions_of(readings: Sequence[Reading], *, repeats: int = 0) -> Conditions | None:
    """The range of several readings; None without any."""
    if not readings:
        return None

    def span(name: str) -> tuple[int, int] | None:
        values = [v for r in readings if (v := getattr(r, name)) is not None]
        return (min(values), max(values)) if values else None

    return Conditions(
        sm_clock_mhz=span("sm_clock_mhz"),
        memory_clock_mhz=span("memory_clock_mhz"),
        temperature_c=span("temperature_c"),
        power_w=span("power_w"),
        throttle=tuple(sorted({reason for reading in readings for reason in reading.throttle})),
        repeats=repeats,
    )
