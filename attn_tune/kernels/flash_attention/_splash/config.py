"""The knobs of one launch of splash attention."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Choice, Knobs
from attn_tune.kernels.lang.pallas_tpu import knobs
from attn_tune.kernels.lang.pallas_tpu.memory import LANES as LANES

HEAD_DIM_MINOR, SEQ_MINOR = "head_dim_minor", "seq_minor"
LAYOUTS = (HEAD_DIM_MINOR, SEQ_MINOR)


def _layout(operand: str) -> Choice:
    return Choice(LAYOUTS, doc=f"order in memory of the {operand}; seq_minor has the length innermost")


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch(Knobs):
    """Blocks of ``block_q`` query rows by ``block_kv`` keys are in VMEM at a time."""

    block_q: Annotated[int, knobs.rows("query rows in VMEM at a time")]
    block_kv: Annotated[int, knobs.keys("keys in VMEM at a time")]
    q_layout: Annotated[str, _layout("queries")] = HEAD_DIM_MINOR
    k_layout: Annotated[str, _layout("keys")] = HEAD_DIM_MINOR
    v_layout: Annotated[str, _layout("values")] = HEAD_DIM_MINOR
    vmem_limit_kib: Annotated[int | None, knobs.VMEM_LIMIT] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputedLaunch(Launch):
    """A launch whose products take ``block_kv_compute`` keys of a block at a time."""

    block_kv_compute: Annotated[int, knobs.product_keys("keys of a block that enter a product")]

    def conflict(self) -> str | None:
        return knobs.indivisible("block_kv_compute", self.block_kv_compute, "block_kv", self.block_kv)


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
