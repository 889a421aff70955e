"""The identity of a device at three levels, from the performance parameters down to the family."""

from dataclasses import dataclass, field, fields
from typing import Any

from attn_tune.schema.digest import digest_json


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One device.

    Attributes:
      platform: ``"cpu"``, ``"cuda"``, ``"rocm"`` or ``"tpu"``.
      family: the architecture, the loosest level of matching: ``"sm_90"``, ``"v6e"``, ``"x86_64"``.
      variant: the marketing name after the alias table: ``"nvidia-h200"``, ``"tpu-v6e"``, ``"cpu-x86_64"``.
      units: streaming multiprocessors, TensorCores or CPU cores.
      shared_bytes: on-chip memory one program may use (opt-in shared memory, VMEM), 0 when it has no meaning.
      l2_bytes: last-level cache, 0 when unknown.
      clock_mhz: maximum core clock, 0 when unknown.
      bandwidth_gbs: peak memory bandwidth in GB/s, 0 when unknown.
      partition: the MIG slice, ``""`` for a whole device.
      power_watts: the enforced power limit's class, rounded to 50 W, 0 when unknown.
      evidence: what is recorded but does not identify: uuid, driver, total memory, raw name.
    """

    platform: str
    family: str
    variant: str
    units: int = 0
    shared_bytes: int = 0
    l2_bytes: int = 0
    clock_mhz: int = 0
    bandwidth_gbs: int = 0
    partition: str = ""
    power_watts: int = 0
    evidence: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    @property
    def identity(self) -> dict[str, Any]:
        """The exact level: everything but the evidence."""
        return {name: getattr(self, name) for name in _IDENTITY}

    @property
    def digest(self) -> str:
        """The digest of ``identity``."""
        return digest_json(self.identity)

    @property
    def compute_capability(self) -> int | None:
        """``90`` for ``sm_90``; None on anything but CUDA."""
        if self.platform == "cuda" and self.family.startswith("sm_"):
            return int(self.family[3:])
        return None

    def __str__(self) -> str:
        return self.variant + (f"/{self.partition}" if self.partition else "")


_IDENTITY = tuple(f.name for f in fields(Device) if f.name != "evidence")
