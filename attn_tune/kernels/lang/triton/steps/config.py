"""The knobs of a state taken through its tokens one by one."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Knobs, PowerOfTwo

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Knobs):
    """A program holds ``block_v`` columns of one state in registers, and takes one token after the other."""

    block_v: Annotated[int, PowerOfTwo(4, 256, tried=(8, 16, 32, 64, 128), doc="columns of the state of a program")]
    num_warps: Annotated[int, PowerOfTwo(1, 16, tried=(1, 2, 4, 8), doc="warps of 32 threads that share them")]
