"""The GPUs of this host, as this process may use them, found without touching them."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attn_tune.devices import cuda_driver
from attn_tune.schema.errors import UsageError

ALL = "all"
_KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
_MOST = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    """One GPU. ``key`` names it on this host, with any number; ``environment`` makes a process see it alone.

    Attributes:
      index: its number on this host.
      platform: JAX's name of its platform.
    """

    index: int
    key: str
    environment: Mapping[str, str] = field(default_factory=dict)
    platform: str = "cuda"

    @property
    def insisted_environment(self) -> dict[str, str]:
        """With it JAX does not start rather than use a processor instead."""
        named = os.environ.get("JAX_PLATFORMS") or f"{self.platform},cpu"
        return {**self.environment, "JAX_PLATFORMS": named}

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.key})"


def accelerators(environ: Mapping[str, str] = os.environ, kfd: Path = _KFD_NODES) -> tuple[Accelerator, ...]:
    """Every GPU that JAX may use here: NVIDIA's, else AMD's; none where ``JAX_PLATFORMS`` leaves them out."""
    platforms = {name.strip() for name in environ.get("JAX_PLATFORMS", "").split(",")}
    if platforms.isdisjoint({"", "cuda", "gpu", "rocm"}):
        return ()
    return tuple(_nvidia(environ)) or tuple(_amd(environ, kfd))


def choose_accelerators(wanted: str | None, found: Sequence[Accelerator]) -> tuple[Accelerator, ...]:
    """Those that ``wanted`` names: ``"all"``, or numbers such as ``"0,1"``; None is the first one.

    Raises:
      UsageError: there is no such GPU, or none at all.
    """
    if wanted is None:
        return tuple(found[:1])
    if not found:
        raise UsageError(f"--devices {wanted}: this host has no GPU that can be used; leave the option out")
    if wanted.strip() == ALL:
        return tuple(found)
    by_index = {str(one.index): one for one in found}
    names = [name.strip() for name in wanted.split(",")]
    for name in names:
        if name not in by_index:
            raise UsageError(f"--devices {wanted}: there is no GPU {name!r}; there are {', '.join(by_index)}, or 'all'")
    return tuple(by_index[name] for name in dict.fromkeys(names))


def _nvidia(environ: Mapping[str, str]) -> Iterator[Accelerator]:
    """In the order of CUDA, which numbers only what ``CUDA_VISIBLE_DEVICES`` shows."""
    names = _listed(environ.get("CUDA_VISIBLE_DEVICES"))
    for index in range(_MOST):
        uuid = cuda_driver.driver_facts(index).uuid
        if not uuid:
            return
        # The name by which it was shown to us also works for MIG slices.
        shown = names[index] if index < len(names) else str(index)
        yield Accelerator(index=index, key=uuid, environment={"CUDA_VISIBLE_DEVICES": shown})


def _amd(environ: Mapping[str, str], kfd: Path) -> Iterator[Accelerator]:
    """From the kernel's topology; processors are nodes there too, without SIMD units."""
    nodes = sorted((p for p in kfd.glob("*") if p.name.isdigit()), key=lambda p: int(p.name))
    facts = [dict(_pairs(node / "properties")) for node in nodes]
    gpus = [f for f in facts if int(f.get("simd_count", 0)) > 0]
    names = _listed(environ.get("ROCR_VISIBLE_DEVICES")) or [str(i) for i in range(len(gpus))]
    for index, name in enumerate(names):
        if not name.isdigit() or int(name) >= len(gpus):
            continue
        gpu = gpus[int(name)]
        # What HIP numbers is what ROCr shows, so the one that is left is its first.
        yield Accelerator(
            index=index,
            key=f"AMD-{int(gpu.get('unique_id', 0)):016x}-{gpu.get('domain', 0)}-{gpu.get('location_id', 0)}",
            environment={"ROCR_VISIBLE_DEVICES": name, "HIP_VISIBLE_DEVICES": "0"},
            platform="rocm",
        )


def _pairs(path: Path) -> Iterator[tuple[str, str]]:
    try:
        text = path.read_text()
    except OSError:
        # Nodes of other containers cannot be read.
        return
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        yield name, value.strip()


def _listed(variable: str | None) -> list[str]:
    return [name.strip() for name in (variable or "").split(",") if name.strip()]
