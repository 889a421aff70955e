"""The knobs of tokamax's Pallas-Triton attention: one launch forward, one backward."""

from dataclasses import dataclass
from typing import Any

from attn_tune.schema.errors import UsageError

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"

MIN_BLOCK = 16  # A Triton product needs at least 16 rows and columns.


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig:
    """The forward: a program owns ``block_q`` rows and walks the keys ``block_k`` at a time.

    Attributes:
      num_warps: warps of 32 threads that share one tile.
      num_stages: tiles in flight between device memory and shared memory.
      block_d, block_d_out: the head dims of queries and of values are cut into pieces of so many; None leaves them
        whole.
      split_k: the keys are cut into so many parts, whose results are combined.
      pack_mask: a dense mask is read as bits.

    Raises:
      UsageError: a knob is out of its range.
    """

    block_q: int
    block_k: int
    num_warps: int
    num_stages: int
    block_d: int | None = None
    block_d_out: int | None = None
    split_k: int = 1
    pack_mask: bool = False

    def __post_init__(self):
        _powers_of_two(self, ("block_q", "block_k", "block_d", "block_d_out"), MIN_BLOCK, 512)
        _powers_of_two(self, ("num_warps",), 1, 16)
        _in_range("num_stages", self.num_stages, 8)
        _in_range("split_k", self.split_k, 64)


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig:
    """The backward: one launch, whose programs make a tile of dk and dv, then a tile of dq.

    Attributes:
      block_m1, block_n1: rows that pass, and keys that stay, for dk and dv.
      block_m2, block_n2: rows that stay, and keys that pass, for dq.
      num_warps, num_stages: as forward.

    Raises:
      UsageError: a knob is out of its range.
    """

    block_m1: int
    block_n1: int
    block_m2: int
    block_n2: int
    num_warps: int
    num_stages: int

    def __post_init__(self):
        blocks = ("block_m1", "block_n1", "block_m2", "block_n2")
        _powers_of_two(self, blocks, MIN_BLOCK, 512)
        _powers_of_two(self, ("num_warps",), 1, 16)
        _in_range("num_stages", self.num_stages, 8)


def _powers_of_two(config: Any, names: tuple[str, ...], low: int, high: int) -> None:
    for name in names:
        value = getattr(config, name)
        if value is None:
            continue
        if not isinstance(value, int) or value & (value - 1) or not low <= value <= high:
            raise UsageError(
                f"{name} must be a power of two between {low} and {high}, got {value!r}"
            )


def _in_range(name: str, value: int, most: int) -> None:
    if not isinstance(value, int) or not 1 <= value <= most:
        raise UsageError(f"{name} must be between 1 and {most}, got {value!r}")
