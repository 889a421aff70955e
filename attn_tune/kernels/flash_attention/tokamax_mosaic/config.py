"""The knobs of tokamax's Mosaic GPU attention on Hopper: one config per launch."""

from dataclasses import dataclass

from attn_tune.schema.errors import UsageError

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"

WARPGROUP_ROWS = 64
# Warpgroups of the forward that compute; a third one loads.
FORWARD_GROUPS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class _Launch:
    """One launch: a warpgroup's tile is ``block_q`` rows by ``block_kv`` keys.

    Attributes:
      num_stages: tiles in flight between device memory and shared memory.

    Raises:
      UsageError: a knob is out of its range.
    """

    block_q: int
    block_kv: int
    num_stages: int

    def __post_init__(self):
        for name in ("block_q", "block_kv"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1 or value % WARPGROUP_ROWS:
                raise UsageError(
                    f"{name} must be a positive multiple of {WARPGROUP_ROWS}, got {value!r}"
                )
        if not 1 <= self.num_stages <= 8:
            raise UsageError(f"num_stages must be between 1 and 8, got {self.num_stages!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(_Launch):
    """The forward: two warpgroups of ``block_q`` rows each walk the keys.

    Attributes:
      persistent: one block a multiprocessor, which takes one tile of rows after the other.
      split_k: the keys are cut into so many parts, whose results are combined.
      fold_q_sequence_heads: the query heads of one key head become rows.
    """

    persistent: bool = False
    split_k: int = 1
    fold_q_sequence_heads: bool = False

    def __post_init__(self):
        _Launch.__post_init__(self)
        if not 1 <= self.split_k <= 64:
            raise UsageError(f"split_k must be between 1 and 64, got {self.split_k!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class _BackwardLaunch(_Launch):
    """A backward launch.

    Attributes:
      compute_warpgroups: how many compute; each owns a block, and they share what passes.
    """

    compute_warpgroups: int = 2

    def __post_init__(self):
        _Launch.__post_init__(self)
        if self.compute_warpgroups not in (1, 2, 3):
            raise UsageError(
                f"compute_warpgroups must be 1, 2 or 3, got {self.compute_warpgroups!r}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class DqConfig(_BackwardLaunch):
    """The gradients of the query and of a bias: rows stay, keys pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DkvConfig(_BackwardLaunch):
    """The key and value gradients: keys stay, rows pass."""


type Launch = ForwardConfig | DqConfig | DkvConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig:
    """The backward: its two launches, searched one by one."""

    dq: DqConfig
    dkv: DkvConfig
