"""The knobs of walks over chunks on Hopper."""

from typing import Annotated

from attn_tune.kernels.knobs import PowerOfTwo, Range

Groups = Annotated[
    int, PowerOfTwo(1, 2, tried=(1, 2), doc="groups of four warps of a walk, each with 64 columns of the state")
]
Stages = Annotated[int, Range(1, 6, tried=(2, 3, 4), doc="chunks in shared memory")]
