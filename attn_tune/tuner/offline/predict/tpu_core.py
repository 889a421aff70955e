"""Figures of a TPU core: what a prediction needs besides its compiler's schedule."""

from dataclasses import dataclass

from attn_tune.schema.device import Device


@dataclass(frozen=True, kw_only=True, slots=True)
class Core:
    """One TensorCore.

    The rates follow from the published peaks: bf16 operations a second over those that the matrix units do in a cycle.
    For v6e published times of whole kernels agree (``benchmarks/results/tpu``).

    Attributes:
      clock_mhz: millions of bundles a second.
      bytes_per_cycle: moved to or from HBM.
      per_device: how many cores are one JAX device.
    """

    clock_mhz: int
    bytes_per_cycle: float
    per_device: int = 1


# By family. v4, v5p: two cores behind one JAX device, each with half of the chip's bandwidth.
_CLOCK_MHZ = {"v4": 1050, "v5e": 1500, "v5p": 1750, "v6e": 1750, "v7x": 2200}
# Of the published bandwidth, what block copies reach.
_SHARE = 0.85


def core_of(device: Device) -> Core | None:
    """The core of a TPU; None for a device that nothing is known of."""
    clock = _CLOCK_MHZ.get(device.family)
    if clock is None or not device.bandwidth_gbs:
        return None
    cores = max(1, device.units)
    bandwidth = _SHARE * device.bandwidth_gbs * 1e9 / cores
    return Core(clock_mhz=clock, bytes_per_cycle=bandwidth / (clock * 1e6), per_device=cores)
