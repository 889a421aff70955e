"""The order of untuned kernels on Hopper: which one a problem should prefer that no pack knows.

By the time that each should take with its untuned config (``costs.py``), but for forwards of few queries, which are
bound by memory: those go by rules.
"""

import functools

from attn_tune.kernels.flash_attention import costs
from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.kernels.spec import load
from attn_tune.schema.device import Device

# Kernels are imported by name and on first use: each of them imports this module.
_OP = "attn_tune.kernels.flash_attention"
# Places of kernels that are in no order below, and of all of them on other GPUs.
_ELSEWHERE = {"cudnn": 60, "triton_split": 55, "triton": 50, "triton_hopper": 45}
_FIRST = 70
# Microseconds up to which reading all keys of packed documents takes less than finding those that count.
_READ_ALL_US = 12


def priority(kernel: str, problem: Problem, direction: str, device: Device) -> int:
    """The place of ``kernel`` among untuned kernels for CUDA, highest first; others stand below 45."""
    if costs.known(device):
        order = _order(problem, direction, device)
        if kernel in order:
            return _FIRST - order.index(kernel)
    return _ELSEWHERE[kernel]


@functools.lru_cache(maxsize=4096)
def _order(problem: Problem, direction: str, device: Device) -> tuple[str, ...]:
    """The kernels for a direction, the preferred one first."""
    if direction == "fwd" and costs.has_few_queries(problem):
        return _of_few_queries(problem, device)
    expected = _backward_us(problem, device) if direction == "bwd" else _forward_us(problem, device)
    return tuple(sorted(expected, key=expected.__getitem__))


def _of_few_queries(problem: Problem, device: Device) -> tuple[str, ...]:
    if costs.has_documents(problem) and _split_us(problem, device) > _READ_ALL_US:
        # `triton_split` and cuDNN read all of them, the others only what a row may see.
        return "triton", "triton_hopper", "triton_split", "cudnn"
    if problem.has_lengths:
        return "triton_split", "triton", "triton_hopper", "cudnn"
    return "triton_split", "cudnn", "triton", "triton_hopper"


def _forward_us(problem: Problem, device: Device) -> dict[str, float]:
    """Microseconds that a forward of each kernel should take."""
    launches = {
        "triton": _triton_us(problem, device, 0),
        "triton_hopper": load(f"{_OP}.triton_hopper.space:least")(problem, device)[0],
        "cudnn": costs.launch_us(costs.Launch("cudnn/fwd", ()), problem, device),
    }
    found = {k: us + costs.call_us(f"{k}/fwd", problem) for k, us in launches.items()}
    return found | {"triton_split": _split_us(problem, device)}


def _backward_us(problem: Problem, device: Device) -> dict[str, float]:
    """Microseconds that a backward of each kernel should take."""
    launches = {
        "triton": sum(_triton_us(problem, device, column) for column in (1, 2)),
        "cudnn": costs.launch_us(costs.Launch("cudnn/bwd", ()), problem, device),
    }
    return {k: us + costs.call_us(f"{k}/bwd", problem) for k, us in launches.items()}


def _triton_us(problem: Problem, device: Device, column: int) -> float:
    """Microseconds of one launch of ``triton``: 0 is the forward, 1 dq and 2 dk/dv."""
    return load(f"{_OP}.triton.heuristic:least")(problem, device, column)[0]


def _split_us(problem: Problem, device: Device) -> float:
    return load(f"{_OP}.triton_split.space:untuned")(problem, device)[0]
