"""The knobs of tokamax's Pallas-Triton attention: one launch forward, one backward."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Flag, Knobs, PowerOfTwo, Range

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"

MIN_BLOCK = 16  # A Triton product needs at least 16 rows and columns.
_SIZES = (16, 32, 64, 128)


def _block(doc: str) -> PowerOfTwo:
    return PowerOfTwo(MIN_BLOCK, 512, tried=_SIZES, doc=doc)


_WARPS = PowerOfTwo(1, 16, tried=(2, 4, 8), doc="warps of 32 threads that share one tile")
_STAGES = Range(1, 8, tried=(1, 2, 3, 4), doc="tiles in flight between device and shared memory")


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(Knobs):
    """The forward: a program owns ``block_q`` rows and walks the keys ``block_k`` at a time."""

    block_q: Annotated[int, _block("query rows of a tile")]
    block_k: Annotated[int, _block("keys of a tile")]
    num_warps: Annotated[int, _WARPS]
    num_stages: Annotated[int, _STAGES]
    block_d: Annotated[
        int | None,
        PowerOfTwo(MIN_BLOCK, 512, doc="the queries' head dim is cut into pieces of so many"),
    ] = None
    block_d_out: Annotated[
        int | None,
        PowerOfTwo(MIN_BLOCK, 512, doc="the values' head dim is cut into pieces of so many"),
    ] = None
    split_k: Annotated[
        int,
        Range(
            1,
            64,
            tried=(1, 2, 4, 8, 16),
            doc="parts that the keys are cut into, whose results are combined",
        ),
    ] = 1
    pack_mask: Annotated[bool, Flag(doc="a dense mask is read as bits")] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig(Knobs):
    """The backward: one launch, whose programs make a tile of dk and dv, then a tile of dq."""

    block_m1: Annotated[int, _block("rows that pass, for dk and dv")]
    block_n1: Annotated[int, _block("keys that stay, for dk and dv")]
    block_m2: Annotated[int, _block("rows that stay, for dq")]
    block_n2: Annotated[int, _block("keys that pass, for dq")]
    num_warps: Annotated[int, _WARPS]
    num_stages: Annotated[int, _STAGES]
