"""Problems and devices that splash attention does not support, and launches that do not fit."""

from attn_tune.kernels.flash_attention._splash.config import SEQ_MINOR, ForwardLaunch, Launch
from attn_tune.kernels.flash_attention._splash.extent import Extent
from attn_tune.kernels.flash_attention._splash.vmem import itemsize, smem_bytes, vmem_bytes
from attn_tune.kernels.lang.pallas_tpu.device_memory import refuses_array
from attn_tune.kernels.lang.pallas_tpu.memory import (
    GENERATIONS,
    LANES,
    limit_reason,
    round_up,
)
from attn_tune.kernels.lang.pallas_tpu.scalars import refuses_visits
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

# Rows and keys of a block that untuned launches prefer.
PREFERRED = 1024


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that splash attention cannot do the problem on this device at all, or None."""
    if device.platform != "tpu":
        return f"splash attention runs on TPUs, not on {device.platform}"
    if device.family not in GENERATIONS:
        return f"splash attention is known to run on TPU {', '.join(GENERATIONS)}, not on {device.family}"
    if problem.dtype == "float16":
        return "TPUs have no float16 matrix unit, and Mosaic cannot load float16"
    refusals = {
        "it has no bias": problem.bias_dims,
        "it has no dense mask: what it hides it knows by position or segment": problem.mask_dims,
        "its columns stand where they lie: it has no explicit positions": problem.has_positions,
        "it has no dropout": problem.dropout_rate,
        f"its logits are float32, not {problem.logits_dtype}": problem.logits_dtype != "float32",
    }
    return next((reason for reason, asked in refusals.items() if asked), None)


def infeasible(problem: Problem, device: Device, launch: Launch) -> str | None:
    """The reason that one launch cannot run, or None."""
    if reason := _block_reason(problem, launch):
        return reason
    if reason := limit_reason(device, vmem_bytes(problem, launch), launch.vmem_limit_kib):
        return reason
    return refuses_visits(smem_bytes(problem, launch))


def unsupported_fused(problem: Problem, direction: str, device: Device) -> str | None:
    """The same of the fused backward, where each block of keys leaves a share of the query gradient."""
    if reason := unsupported(problem, direction, device):
        return reason
    extent = Extent(problem=problem, block_q=LANES, block_kv=PREFERRED)
    rows, shares = extent.sequences * extent.q_len, extent.sequences * extent.kv_len // PREFERRED
    heads = problem.num_q_heads * problem.batch // extent.sequences
    size = shares * heads * rows * round_up(problem.head_dim, LANES) * itemsize(problem)
    return refuses_array(device, f"a query gradient of each of {shares} blocks of keys", size, 1)


def _block_reason(problem: Problem, launch: Launch) -> str | None:
    in_sublanes = isinstance(launch, ForwardLaunch) and launch.q_layout != SEQ_MINOR
    least = LANES if not in_sublanes else 16 if problem.dtype == "bfloat16" else 8
    if launch.block_q % least:
        return f"block_q={launch.block_q} is not a multiple of {least}, which its layout needs"
    for name, block, length in (
        ("block_q", launch.block_q, problem.q_len),
        ("block_kv", launch.block_kv, problem.kv_len),
    ):
        if block > round_up(length, LANES):
            return f"{name}={block} is longer than the {length} tokens there are"
    return None
