"""The place of the forward that splits the keys among untuned kernels; ``triton_hopper`` has 63 at most, cuDNN 60."""

from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.kernels.flash_attention.triton_split.limits import units
from attn_tune.schema.device import Device

# Query rows of a tile of `triton_hopper` and cuDNN.
_ROWS = 128
# Times as many keys as queries: with fewer there is little to share out.
_MANY_KEYS = 8
# At head dim 128 full tiles on every multiprocessor reach 650 TFLOP/s on an H200, split keys 420.
_LEAST_BUSY = 0.65


def priority(problem: Problem, direction: str, device: Device) -> int:
    """Above ``triton``: where it can, it is 2 to 12 times as fast (benchmarks/results/h200).

    On Hopper above all others for a few queries, for which their tiles are mostly empty or too few: with 4 over 4k keys
    it takes 0.3 of the time of ``triton_hopper`` on an H200. A single query is cuDNN's: 0.96 to 1.5 times as fast.
    """
    is_first = device.compute_capability == 90 and problem.q_len > 1
    return 64 if is_first and _has_few_queries(problem, device) else 55


def _has_few_queries(problem: Problem, device: Device) -> bool:
    """Whether tiles of 128 rows would leave much of the device idle, and keys are enough to share out."""
    if problem.q_len > _ROWS or problem.kv_len < _MANY_KEYS * problem.q_len:
        return False
    tiles = problem.batch * problem.num_q_heads
    rounds = -(-tiles // units(device))
    return problem.q_len / _ROWS * tiles / (rounds * units(device)) < _LEAST_BUSY
