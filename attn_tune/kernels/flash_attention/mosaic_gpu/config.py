"""The knobs of JAX's Mosaic GPU attention: one config per launch."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Choice, Flag, Range
from attn_tune.kernels.lang.libraries import mosaic

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"

_STEPS = "tiles in flight between device memory and shared memory"


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(mosaic.Launch):
    """The forward: two warpgroups of ``block_q`` rows each walk the keys."""

    max_concurrent_steps: Annotated[int, Range(2, 8, tried=(2, 3, 4), doc=_STEPS)]
    pipeline_emitter: Annotated[
        bool, Flag(doc="the variant whose loads JAX's pipeline emitter schedules; not causal")
    ] = False
    schedule_barrier: Annotated[
        bool,
        Flag(doc="the two warpgroups take turns with the tensor core; only the emitter's variant can do without"),
    ] = True

    def conflict(self) -> str | None:
        if not (self.schedule_barrier or self.pipeline_emitter):
            return "schedule_barrier=False needs pipeline_emitter=True"
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class _BackwardLaunch(mosaic.Launch):
    max_concurrent_steps: Annotated[int, Range(2, 8, tried=(2, 3), doc=_STEPS)]
    compute_warpgroups: Annotated[
        int,
        Choice(
            (1, 2, 3),
            tried=(1, 2),
            doc="warpgroups that compute; each owns a block, and they share what passes",
        ),
    ] = 1


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
