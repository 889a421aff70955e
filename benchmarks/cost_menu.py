"""The configs that the cost model of untuned choices on Hopper tells apart: those that ``fit_costs.py`` fits."""

from collections.abc import Mapping, Sequence

from attn_tune.kernels.flash_attention import costs
from attn_tune.ops.flash_attention.problem import Problem

WIDTHS = (64, 128, 256)
# Configs that are chosen among: those that won races, and no more of them than races tell apart.
MENU: Mapping[str, Mapping[int, Sequence[tuple[int, ...]]]] = {
    "triton/fwd": {
        64: ((64, 64, 4, 3), (64, 64, 4, 2), (64, 128, 4, 2), (128, 128, 8, 3, 128), (128, 64, 4, 3),
             (32, 64, 4, 3), (16, 64, 2, 3), (16, 64, 2, 2)),
        128: ((64, 64, 4, 3), (64, 64, 4, 2), (64, 32, 4, 3), (64, 128, 8, 2), (32, 64, 4, 3), (16, 64, 2, 3),
              (16, 64, 2, 2)),
        256: ((128, 64, 8, 2), (64, 64, 4, 3), (64, 64, 8, 2), (64, 32, 4, 3), (32, 64, 4, 3), (16, 64, 2, 3)),
    },
    "triton/dq": {
        64: ((64, 64, 4, 3), (128, 64, 8, 3), (64, 32, 4, 3), (64, 64, 4, 2), (64, 128, 4, 3), (32, 64, 2, 3)),
        128: ((64, 64, 4, 2), (128, 64, 8, 3), (128, 32, 8, 3), (64, 32, 4, 3), (64, 64, 4, 3)),
        256: ((128, 32, 8, 3), (64, 32, 8, 3), (64, 32, 4, 3)),
    },
    "triton/dkv": {
        64: ((64, 64, 4, 3), (64, 64, 4, 2), (32, 64, 4, 4), (32, 64, 4, 3), (32, 64, 4, 2, 168), (16, 64, 4, 3),
             (64, 64, 4, 3, 168)),
        128: ((64, 64, 4, 2), (64, 64, 4, 3), (32, 64, 4, 3), (16, 64, 4, 3), (64, 128, 8, 4)),
        256: ((64, 32, 4, 2), (16, 32, 4, 3), (32, 32, 4, 2)),
    },
    "triton_hopper/fwd": {
        64: ((128, 4, 0), (128, 3, 0), (128, 2, 1), (64, 3, 0)),
        128: ((128, 2, 1), (128, 3, 0), (64, 3, 0)),
        256: ((64, 2, 0), (64, 2, 1)),
    },
    "triton_split/fwd": {
        64: ((64, 64, 4, 3), (64, 128, 4, 3), (64, 64, 4, 2), (128, 64, 4, 3)),
        128: ((64, 64, 4, 3), (64, 128, 4, 3), (64, 64, 4, 2)),
        256: ((64, 32, 4, 3), (64, 64, 4, 2), (128, 32, 8, 3)),
    },
    "cudnn/fwd": {64: ((),), 128: ((),), 256: ((),)},
    "cudnn/bwd": {64: ((),), 128: ((),), 256: ((),)},
}  # fmt: skip
TILE = ("block_q", "block_k", "num_warps", "num_stages", "max_registers")
KNOBS = {"triton_hopper": ("block_k", "num_stages", "ping_pong")}


def width_of(problem: Problem) -> int:
    """The head dim up to which the configs are for a problem."""
    return next(width for width in WIDTHS if costs.width(problem) <= width)
