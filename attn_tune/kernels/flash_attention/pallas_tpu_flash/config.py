"""The knobs of JAX's flash attention for TPU: one config per launch."""

from dataclasses import dataclass

from attn_tune.schema.errors import UsageError

LANES = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class _Launch:
    """``block_k_major`` keys are in VMEM at a time, of which ``block_k`` enter a product.

    Attributes:
      block_q: query rows that enter a product.
      vmem_limit_kib: the most VMEM the launch may take; None is the compiler's default.

    Raises:
      UsageError: a knob is out of its range, or one does not divide the other.
    """

    block_q: int
    block_k_major: int
    block_k: int
    vmem_limit_kib: int | None = None

    def __post_init__(self):
        _multiple("block_q", self.block_q, 8)
        _multiple("block_k", self.block_k, LANES)
        _divides("block_k", self.block_k, "block_k_major", self.block_k_major)
        if self.vmem_limit_kib is not None:
            _multiple("vmem_limit_kib", self.vmem_limit_kib, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(_Launch):
    """The forward: rows of ``block_b`` sequences stay, keys pass."""

    block_b: int = 1

    def __post_init__(self):
        _Launch.__post_init__(self)
        _multiple("block_b", self.block_b, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class DqConfig(_Launch):
    """The query gradient: rows stay, keys pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DkvConfig(_Launch):
    """The key and value gradients: keys stay, ``block_q_major`` rows pass."""

    block_q_major: int

    def __post_init__(self):
        _Launch.__post_init__(self)
        _divides("block_q", self.block_q, "block_q_major", self.block_q_major)


type Launch = ForwardConfig | DqConfig | DkvConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig:
    """The backward: its two launches, searched one by one."""

    dq: DqConfig
    dkv: DkvConfig


def rows_of(launch: Launch) -> int:
    """Query rows in VMEM at a time."""
    return launch.block_q_major if isinstance(launch, DkvConfig) else launch.block_q


def _multiple(name: str, value: int, step: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < step or value % step:
        raise UsageError(f"{name} must be a positive multiple of {step}, got {value!r}")


def _divides(name: str, value: int, whole_name: str, whole: int) -> None:
    _multiple(whole_name, whole, 1)
    if whole % value:
        raise UsageError(f"{name}={value} must divide {whole_name}={whole}")
