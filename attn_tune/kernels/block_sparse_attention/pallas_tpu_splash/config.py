"""The knobs of splash attention over a mask of blocks: one config per launch."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Knobs
from attn_tune.kernels.lang.pallas_tpu import knobs

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch(Knobs):
    """Blocks of ``block_q`` rows by ``block_kv`` keys are in VMEM at a time; each divides a block of the mask."""

    block_q: Annotated[int, knobs.rows("query rows in VMEM at a time")]
    block_kv: Annotated[int, knobs.keys("keys in VMEM at a time")]
    vmem_limit_kib: Annotated[int | None, knobs.VMEM_LIMIT] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputedLaunch(Launch):
    """A launch whose products take ``block_kv_compute`` keys of a block at a time."""

    block_kv_compute: Annotated[int, knobs.product_keys("keys of a block that enter a product")]

    def conflict(self) -> str | None:
        return knobs.indivisible("block_kv_compute", self.block_kv_compute, "block_kv", self.block_kv)


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(ComputedLaunch):
    """The forward: rows stay, keys pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DqConfig(Launch):
    """The query gradient: rows stay, keys pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DkvConfig(ComputedLaunch):
    """The key and value gradients: keys stay, rows pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig:
    """The backward: its two launches, searched one by one."""

    dq: DqConfig
    dkv: DkvConfig
