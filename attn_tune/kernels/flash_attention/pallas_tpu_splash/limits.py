"""What cannot run: problems and devices that splash attention does not support, and launches that do not fit."""

from attn_tune.kernels.flash_attention._pallas_tpu.memory import (
    GENERATIONS,
    LANES,
    MIB,
    limit_of,
    tiled_bytes,
)
from attn_tune.kernels.flash_attention._pallas_tpu.padding import round_up
from attn_tune.kernels.flash_attention.pallas_tpu_splash.config import (
    SEQ_MINOR,
    BackwardConfig,
    DkvConfig,
    DqConfig,
    ForwardConfig,
)
from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.schema.device import Device

type Launch = ForwardConfig | DqConfig | DkvConfig


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """Why splash attention cannot do the problem on this device at all, or None."""
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


def infeasible(problem: Problem, device: Device, config: Launch | BackwardConfig) -> str | None:
    """Why a whole config or one part of it cannot run, or None."""
    if isinstance(config, BackwardConfig):
        for part, launch in (("dq", config.dq), ("dkv", config.dkv)):
            if reason := infeasible(problem, device, launch):
                return f"{part}: {reason}"
        return None
    if reason := _block_reason(problem, config):
        return reason
    needed, limit = vmem_bytes(problem, config), limit_of(device, config.vmem_limit_kib)
    if limit >= device.shared_bytes and config.vmem_limit_kib is not None:
        return f"a limit of {limit / MIB:.0f} MiB is not below {device}'s {device.shared_bytes / MIB:.0f} MiB of VMEM"
    if needed > limit:
        return f"its blocks need about {needed / MIB:.1f} MiB of VMEM; its limit on {device} is {limit / MIB:.0f} MiB"
    return None


def _block_reason(problem: Problem, config: Launch) -> str | None:
    needs_lanes = not isinstance(config, ForwardConfig) or config.q_layout == SEQ_MINOR
    least = LANES if needs_lanes else 16 if problem.dtype == "bfloat16" else 8
    if config.block_q % least:
        return f"block_q={config.block_q} is not a multiple of {least}, which its layout needs"
    for name, block, length in (
        ("block_q", config.block_q, problem.q_len),
        ("block_kv", config.block_kv, problem.kv_len),
    ):
        if block > round_up(length, LANES):
            return f"{name}={block} is longer than the {length} tokens there are"
    return None


def vmem_bytes(problem: Problem, config: Launch) -> int:
    """An estimate of a launch's VMEM."""
    size = 4 if problem.dtype == "float32" else 2
    h, v = problem.head_dim, problem.v_head_dim
    rows, cols = config.block_q, config.block_kv
    numbers = tiled_bytes(rows, LANES, 4)
    blocks = tiled_bytes(rows, h, size) + tiled_bytes(cols, h, size) + tiled_bytes(cols, v, size)
    blocks += numbers * (2 if problem.has_segments else 1)
    compute = config.block_kv if isinstance(config, DqConfig) else config.block_kv_compute
    blocks += tiled_bytes(rows, v, size) + numbers
    scratch = 2 * numbers + tiled_bytes(rows, v, 4)
    return 2 * blocks + scratch + 2 * tiled_bytes(rows, compute, 4)
