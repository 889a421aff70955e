"""The knobs of JAX's Mosaic GPU attention: one config per launch."""

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
      max_concurrent_steps: tiles in flight between device memory and shared memory.

    Raises:
      UsageError: a knob is out of its range.
    """

    block_q: int
    block_kv: int
    max_concurrent_steps: int

    def __post_init__(self):
        for name in ("block_q", "block_kv"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1 or value % WARPGROUP_ROWS:
                raise UsageError(
                    f"{name} must be a positive multiple of {WARPGROUP_ROWS}, got {value!r}"
                )
        if not 2 <= self.max_concurrent_steps <= 8:
            raise UsageError(
                f"max_concurrent_steps must be between 2 and 8, got {self.max_concurrent_steps!r}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(_Launch):
    """The forward: two warpgroups of ``block_q`` rows each walk the keys.

    Attributes:
      pipeline_emitter: the variant whose loads JAX's pipeline emitter schedules; not causal.
      schedule_barrier: the two warpgroups take turns with the tensor core. Only the emitter's variant can do without.
    """

    pipeline_emitter: bool = False
    schedule_barrier: bool = True

    def __post_init__(self):
        _Launch.__post_init__(self)
        if not (self.schedule_barrier or self.pipeline_emitter):
            raise UsageError("schedule_barrier=False needs pipeline_emitter=True")


@dataclass(frozen=True, kw_only=True, slots=True)
class _BackwardLaunch(_Launch):
    """A backward launch.

    Attributes:
      compute_warpgroups: how many compute; each owns a block, and they share what passes.
    """

    compute_warpgroups: int = 1

    def __post_init__(self):
        _Launch.__post_init__(self)
        if self.compute_warpgroups not in (1, 2, 3):
            raise UsageError(
                f"compute_warpgroups must be 1, 2 or 3, got {self.compute_warpgroups!r}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class DqConfig(_BackwardLaunch):
    """The query gradient: rows stay, keys pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DkvConfig(_BackwardLaunch):
    """The key and value gradients: keys stay, rows pass."""


type Launch = ForwardConfig | DqConfig | DkvConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig:
    """The backward: its two launches, searched one by one."""

    dq: DqConfig
    dkv: DkvConfig
