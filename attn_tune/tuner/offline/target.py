"""The devices that kernels can be compiled for without being here."""

from dataclasses import dataclass, replace

from attn_tune.devices.environments import assembler, distribution_version
from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.spec import COMPILE_ANYWHERE
from attn_tune.schema.device import Device
from attn_tune.schema.environment import UNKNOWN, Environment
from attn_tune.schema.errors import UsageError, unknown_name

# One chip of each generation, or the smallest slice there is, in the words of JAX's topology descriptions.
TOPOLOGIES = {
    "tpu-v4": "v4:2x2x1",
    "tpu-v5e": "v5e:1x1",
    "tpu-v5p": "v5p:2x2x1",
    "tpu-v6e": "v6e:1x1",
    "tpu-v7x": "tpu7x:2x2x1",
}
GPUS = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120")
NAMES = (*TOPOLOGIES, *GPUS)

# Stands in the place of a driver: no measurement is ever made in such an environment.
COMPILE_ONLY = "compile-only"


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A device to compile for.

    Attributes:
      name: as ``--target`` takes it.
      device: its identity and figures; a GPU's has a compute capability.
      topology: in the words of JAX's topology descriptions; empty for a GPU.
    """

    name: str
    device: Device
    topology: str = ""

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends whose kernels can be compiled for it here."""
        return ("pallas_tpu",) if self.topology else COMPILE_ANYWHERE

    def environment(self, base: Environment) -> Environment:
        """The environment of a compile for the target; ``base`` is this process's software.

        Raises:
          UsageError: the compiler is not installed.
        """
        compiler = _libtpu() if self.topology else _ptxas(self.device.compute_capability or 0)
        triton = UNKNOWN if self.topology else base.triton
        return replace(base, triton=triton, compiler=compiler, driver=COMPILE_ONLY)

    def __str__(self) -> str:
        return self.name


def find_target(name: str) -> Target:
    """The target called ``name``: one of ``NAMES``, any NVIDIA GPU that has a name here, or another name of these.

    Raises:
      UsageError: unknown, or nothing can be compiled for it.
    """
    text = name.strip().lower()
    try:
        device = device_from_kind(text)
    except UsageError:
        raise unknown_name("target", name, NAMES) from None
    if device.variant in TOPOLOGIES:
        return Target(name=device.variant, device=device, topology=TOPOLOGIES[device.variant])
    if (device.compute_capability or 0) < 80:
        raise UsageError(f"nothing can be compiled for {name!r} here; targets are {', '.join(NAMES)}")
    return Target(name=text, device=device)


def _libtpu() -> str:
    version = distribution_version("libtpu")
    if not version:
        raise UsageError("a TPU target needs the compiler in libtpu: pip install 'attn-tune[tpu]'")
    return f"libtpu {version}"


def _ptxas(capability: int) -> str:
    """Triton's assembler of GPUs like this one, which an offline compile ends with."""
    from attn_tune.ops.contract import load

    if not distribution_version("triton"):
        raise UsageError("a GPU target needs Triton: pip install 'attn-tune[cuda]'")
    return assembler(load("triton.backends.nvidia.compiler:get_ptxas")(capability).path)
