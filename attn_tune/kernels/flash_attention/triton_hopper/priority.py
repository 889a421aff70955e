"""The place of the forward for Hopper among untuned kernels; cuDNN has 60, ``triton_split`` 55 or 64, ``triton`` 50."""

from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.schema.device import Device

# Queries and keys of an encoder of images or sentences. Without a mask cuDNN is 1.14 times as fast at 32x197 with head
# dim 64 on an H200; at 1024 it is not any more (1/1.08 of the speed at head dim 64, 1/1.02 at 128, 1/1.04 at 256).
_SHORT = 700


def priority(problem: Problem, direction: str, device: Device) -> int:
    """Above cuDNN: faster on every long problem measured on an H200 (benchmarks/results/h200/hopper_over_cudnn.md).

    Below both others for a single query, of which it fills one row of 128: over 1k to 64k keys it takes 2 to 12 times
    as long as ``triton_split`` and cuDNN there.
    """
    if problem.q_len == 1:
        return 52
    is_short = max(problem.q_len, problem.kv_len) <= _SHORT
    return 58 if is_short and problem.bounds == (None, None) else 63
