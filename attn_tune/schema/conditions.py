"""The state a device was in while it was measured."""

from collections.abc import Sequence
from dataclasses import dataclass

# Another sweep measured on the same processor meanwhile.
SHARED_HOST = "shared_host"
# Reasons for a slower device that have nothing to do with what runs. A power cap is not among them: it comes and goes
# with the kernel, and is part of its time.
DISTURBED = frozenset({"hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake", SHARED_HOST})
# The share by which a clock may move during a measurement that counts as steady.
CLOCK_TOLERANCE = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One look at a device; None is unknown. ``throttle`` are the reasons why its clock is not at its highest.

    Attributes:
      sm_clock_mhz, memory_clock_mhz: the clocks.
      temperature_c: degrees Celsius.
      power_w: watts.
    """

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: int | None = None
    throttle: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """The state of a device during a measurement: lowest and highest reading of each sensor, None if unknown.

    Attributes:
      sm_clock_mhz, memory_clock_mhz: the clocks.
      temperature_c: degrees Celsius.
      power_w: watts.
      throttle: reasons of a slower device that were seen, in NVML's words, or ``SHARED_HOST``.
      repeats: the number of times that the measurement was discarded and repeated because the clock had moved.
    """

    sm_clock_mhz: tuple[int, int] | None = None
    memory_clock_mhz: tuple[int, int] | None = None
    temperature_c: tuple[int, int] | None = None
    power_w: tuple[int, int] | None = None
    throttle: tuple[str, ...] = ()
    repeats: int = 0

    def steady(self, tolerance: float = CLOCK_TOLERANCE) -> bool:
        """Whether the clock moved by no more than ``tolerance`` (a share), and nothing else slowed the device."""
        return not DISTURBED.intersection(self.throttle) and self._has_steady_clock(tolerance)

    @property
    def disturbances(self) -> tuple[str, ...]:
        """The causes of noise in the times of the measurement, a phrase each."""
        found: list[str] = []
        if SHARED_HOST in self.throttle:
            found.append("another sweep ran on the host")
        if slowed := sorted(DISTURBED.intersection(self.throttle) - {SHARED_HOST}):
            found.append(f"the device was slowed down ({', '.join(slowed)})")
        if self.sm_clock_mhz and not self._has_steady_clock(CLOCK_TOLERANCE):
            low, high = self.sm_clock_mhz
            found.append(f"its clock moved between {low} and {high} MHz")
        return tuple(found)

    def _has_steady_clock(self, tolerance: float) -> bool:
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
