"""The knobs of JAX's flash attention for TPU: one config per launch."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Knobs, Multiple
from attn_tune.kernels.lang.pallas_tpu import knobs


@dataclass(frozen=True, kw_only=True, slots=True)
class _Launch(Knobs):
    """``block_k_major`` keys are in VMEM at a time, of which ``block_k`` enter a product."""

    block_q: Annotated[int, knobs.rows("query rows that enter a product")]
    block_k_major: Annotated[int, Multiple(tried=knobs.BLOCKS, doc="keys in VMEM at a time")]
    block_k: Annotated[int, knobs.product_keys("keys that enter a product")]
    vmem_limit_kib: Annotated[int | None, knobs.VMEM_LIMIT] = None

    def conflict(self) -> str | None:
        return knobs.indivisible("block_k", self.block_k, "block_k_major", self.block_k_major)


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(_Launch):
    """The forward: rows of ``block_b`` sequences stay, keys pass."""

    block_b: Annotated[int, Multiple(tried=(1, 2, 4, 8), doc="sequences of one step")] = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class DqConfig(_Launch):
    """The query gradient: rows stay, keys pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DkvConfig(_Launch):
    """The key and value gradients: keys stay, ``block_q_major`` rows pass."""

    block_q_major: Annotated[int, Multiple(tried=knobs.BLOCKS, doc="query rows in VMEM at a time")]

    def conflict(self) -> str | None:
        return _Launch.conflict(self) or knobs.indivisible("block_q", self.block_q, "block_q_major", self.block_q_major)


type Launch = ForwardConfig | DqConfig | DkvConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig:
    """The backward: its two launches, searched one by one."""

    dq: DqConfig
    dkv: DkvConfig


def rows_of(launch: Launch) -> int:
    """Query rows in VMEM at a time."""
    return launch.block_q_major if isinstance(launch, DkvConfig) else launch.block_q
