"""The order of untuned kernels: which one a problem should prefer that no pack knows.

On Hopper, kernels for CUDA go by the time that each should take with its untuned config (``costs.py``), but for
forwards of few queries, which are bound by memory: those go by rules. Everything else has a fixed place.
"""

import functools

from attn_tune.kernels.flash_attention import costs
from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.schema.device import Device

# Places by platform, highest first; a kernel of this package that is absent has place 0.
_PLACES: dict[str, dict[str, int]] = {
    "cuda": {
        "cudnn": 60,
        "triton_split": 55,
        "triton": 50,
        "triton_hopper": 45,
        "triton_fused": 40,
        "xla": 1,
        "mosaic_gpu": -10,
        "tokamax_mosaic": -20,
        "tokamax_triton": -30,
    },
    "tpu": {
        "pallas_tpu_splash": 50,
        "pallas_tpu_splash_fused": 40,
        "pallas_tpu_flash": 30,
        "xla": 1,
    },
    "rocm": {"xla": 1},
    "cpu": {"xla": 10},
}
KNOWN = frozenset(kernel for places in _PLACES.values() for kernel in places)
# The kernels that ``_order`` may hold.
_TIMED = ("cudnn", "triton_split", "triton", "triton_hopper")
# The place of the first kernel that goes by its expected time.
_FIRST = 70
# Microseconds up to which reading all keys of packed documents takes less than finding those that count.
_READ_ALL_US = 12


def place(kernel: str, problem: Problem, direction: str, device: Device) -> int | None:
    """The place of ``kernel`` among untuned kernels, highest first; None for a kernel of another package."""
    if kernel not in KNOWN:
        return None
    if device.platform == "cuda" and costs.known(device):
        order = _order(problem, direction, device) if kernel in _TIMED else ()
        if kernel in order:
            return _FIRST - order.index(kernel)
    return _PLACES.get(device.platform, {}).get(kernel, 0)


def priority(kernel: str, problem: Problem, direction: str, device: Device) -> int:
    """The place of a kernel of this package."""
    return place(kernel, problem, direction, device) or 0


@functools.lru_cache(maxsize=4096)
def _order(problem: Problem, direction: str, device: Device) -> tuple[str, ...]:
    """The kernels for a direction, the preferred one first."""
    if direction == "fwd" and costs.has_few_queries(problem):
        return _of_few_queries(problem, device)
    expected = _backward_us(problem, device) if direction == "bwd" else _forward_us(problem, device)
    return tuple(sorted(expected, key=expected.__getitem__))


def _of_few_queries(problem: Problem, device: Device) -> tuple[str, ...]:
    from attn_tune.kernels.flash_attention.triton_split import space

    if costs.has_documents(problem) and space.untuned(problem, device)[0] > _READ_ALL_US:
        # `triton_split` and cuDNN read all of them, the others only what a row may see.
        return "triton", "triton_hopper", "triton_split", "cudnn"
    if problem.has_lengths:
        return "triton_split", "triton", "triton_hopper", "cudnn"
    return "triton_split", "cudnn", "triton", "triton_hopper"


def _forward_us(problem: Problem, device: Device) -> dict[str, float]:
    """Microseconds that a forward of each kernel should take."""
    from attn_tune.kernels.flash_attention.triton import heuristic
    from attn_tune.kernels.flash_attention.triton_hopper import space as hopper
    from attn_tune.kernels.flash_attention.triton_split import space as split

    launches = {
        "triton": heuristic.least(problem, device, 0)[0],
        "triton_hopper": hopper.least(problem, device)[0],
        "cudnn": costs.launch_us(costs.Launch("cudnn/fwd", ()), problem, device),
    }
    found = {k: us + costs.call_us(f"{k}/fwd", problem) for k, us in launches.items()}
    return found | {"triton_split": split.untuned(problem, device)[0]}


def _backward_us(problem: Problem, device: Device) -> dict[str, float]:
    """Microseconds that a backward of each kernel should take."""
    from attn_tune.kernels.flash_attention.triton import heuristic

    launches = {
        "triton": sum(heuristic.least(problem, device, column)[0] for column in (1, 2)),
        "cudnn": costs.launch_us(costs.Launch("cudnn/bwd", ()), problem, device),
    }
    return {k: us + costs.call_us(f"{k}/bwd", problem) for k, us in launches.items()}
