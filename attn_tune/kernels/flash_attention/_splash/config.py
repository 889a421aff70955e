"""The knobs of one launch of splash attention."""

from dataclasses import dataclass

from attn_tune.schema.errors import UsageError

LANES = 128
HEAD_DIM_MINOR, SEQ_MINOR = "head_dim_minor", "seq_minor"
LAYOUTS = (HEAD_DIM_MINOR, SEQ_MINOR)


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """Blocks of ``block_q`` query rows by ``block_kv`` keys are in VMEM at a time.

    Attributes:
      q_layout, k_layout, v_layout: the order in memory of each operand; ``"seq_minor"`` has the length innermost.
      vmem_limit_kib: the most VMEM the launch may take; None is the compiler's default.

    Raises:
      UsageError: a knob is out of its range, or one does not divide the other.
    """

    block_q: int
    block_kv: int
    q_layout: str = HEAD_DIM_MINOR
    k_layout: str = HEAD_DIM_MINOR
    v_layout: str = HEAD_DIM_MINOR
    vmem_limit_kib: int | None = None

    def __post_init__(self):
        _multiple("block_q", self.block_q, 8)
        _multiple("block_kv", self.block_kv, LANES)
        for name in ("q_layout", "k_layout", "v_layout"):
            if getattr(self, name) not in LAYOUTS:
                raise UsageError(
                    f"{name} must be one of {', '.join(LAYOUTS)}, got {getattr(self, name)!r}"
                )
        if self.vmem_limit_kib is not None:
            _multiple("vmem_limit_kib", self.vmem_limit_kib, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputedLaunch(Launch):
    """A launch whose products take ``block_kv_compute`` keys of a block at a time."""

    block_kv_compute: int

    def __post_init__(self):
        Launch.__post_init__(self)
        _multiple("block_kv_compute", self.block_kv_compute, LANES)
        if self.block_kv % self.block_kv_compute:
            raise UsageError(
                f"block_kv_compute={self.block_kv_compute} must divide block_kv={self.block_kv}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardLaunch(ComputedLaunch):
    """The forward: rows stay, keys pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DqLaunch(Launch):
    """The query gradient: rows stay, keys pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DkvLaunch(ComputedLaunch):
    """The key and value gradients: keys stay, rows pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FusedLaunch(ComputedLaunch):
    """All three gradients: keys stay, rows pass, and each block of keys leaves its share of dq to be summed."""


def _multiple(name: str, value: int, step: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < step or value % step:
        raise UsageError(f"{name} must be a positive multiple of {step}, got {value!r}")
