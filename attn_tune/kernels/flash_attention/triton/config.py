"""The knobs of the Triton flash attention kernels: one config per launch."""

from dataclasses import dataclass

from attn_tune.schema.errors import UsageError

MIN_BLOCK = 16  # tl.dot needs at least 16 rows and columns


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tile:
    """One launch: a tile of ``block_q`` query rows by ``block_k`` keys.

    Attributes:
      num_warps: warps of 32 threads that share one tile.
      num_stages: tiles in flight between device memory and shared memory.
      max_registers: registers a thread at most, so that one more block fits a multiprocessor; what does not fit is
        spilled. None leaves it to the compiler.

    Raises:
      UsageError: a knob is not a power of two in its range.
    """

    block_q: int
    block_k: int
    num_warps: int
    num_stages: int
    max_registers: int | None = None

    def __post_init__(self):
        _power_of_two("block_q", self.block_q, MIN_BLOCK, 512)
        _power_of_two("block_k", self.block_k, MIN_BLOCK, 512)
        _power_of_two("num_warps", self.num_warps, 1, 16)
        if not 1 <= self.num_stages <= 8:
            raise UsageError(f"num_stages must be between 1 and 8, got {self.num_stages!r}")
        if self.max_registers is not None and not 32 <= self.max_registers <= 255:
            raise UsageError(
                f"max_registers must be between 32 and 255, or None, got {self.max_registers!r}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(_Tile):
    """The forward: a program owns ``block_q`` rows and walks the keys ``block_k`` at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DqConfig(_Tile):
    """The query gradient: a program owns ``block_q`` rows and walks the keys ``block_k`` at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DkvConfig(_Tile):
    """The key and value gradients: a program owns ``block_k`` keys and walks the rows ``block_q`` at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DbiasConfig(_Tile):
    """The bias gradient: derived from the problem, not searched (``static.dbias_config``)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig:
    """The backward: its two launches, searched one by one."""

    dq: DqConfig
    dkv: DkvConfig


def _power_of_two(name: str, value: int, low: int, high: int) -> None:
    if not isinstance(value, int) or value & (value - 1) or not low <= value <= high:
        raise UsageError(f"{name} must be a power of two between {low} and {high}, got {value!r}")
