"""Problems and devices that the kernel does not support, and launches that do not fit."""

from attn_tune.kernels.flash_attention.pallas_tpu_flash.config import (
    ForwardConfig,
    Launch,
    rows_of,
)
from attn_tune.kernels.flash_attention.pallas_tpu_flash.frame import Frame
from attn_tune.kernels.flash_attention.pallas_tpu_flash.vmem import vmem_bytes
from attn_tune.kernels.lang.pallas_tpu.device_memory import refuses_array
from attn_tune.kernels.lang.pallas_tpu.memory import (
    GENERATIONS,
    LANES,
    limit_reason,
    round_up,
)
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

# Copies of the bias that are alive at once: as it is computed and padded, and of a backward its gradient.
_BIAS_COPIES = {"fwd": 2, "bwd": 3}


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that the kernel cannot do the problem on this device at all, or None."""
    if device.platform != "tpu":
        return f"JAX's flash attention for TPU runs on TPUs, not on {device.platform}"
    if device.family not in GENERATIONS:
        return f"JAX's flash attention is known to run on TPU {', '.join(GENERATIONS)}, not on {device.family}"
    if problem.dtype == "float16":
        return "TPUs have no float16 matrix unit, and Mosaic cannot load float16"
    has_bias = problem.bias_dims is not None or problem.mask_dims is not None
    refusals = {
        "it has no window": _has_window(problem),
        "it has no tanh soft cap": problem.soft_cap,
        "it has no explicit positions": problem.has_positions,
        "it has no dropout": problem.dropout_rate,
        f"its logits are float32, not {problem.logits_dtype}": problem.logits_dtype != "float32",
        "it adds the bias before it scales: a scale of zero would lose it": has_bias and problem.scale == 0,
    }
    reason = next((reason for reason, asked in refusals.items() if asked), None)
    return reason or (_bias_reason(problem, direction, device) if has_bias else None)


def _bias_reason(problem: Problem, direction: str, device: Device) -> str | None:
    frame = Frame(problem=problem, block_q=LANES, block_k=LANES)
    size = 4 * problem.batch * problem.num_q_heads * frame.q_len * frame.kv_len
    return refuses_array(device, "a bias or mask as one float32 array of all pairs", size, _BIAS_COPIES[direction])


def infeasible(problem: Problem, device: Device, launch: Launch) -> str | None:
    """The reason that one launch cannot run, or None."""
    return _block_reason(problem, launch) or limit_reason(device, vmem_bytes(problem, launch), launch.vmem_limit_kib)


def _has_window(problem: Problem) -> bool:
    left, right = problem.window
    # A causal call has no right bound of its own; one of a length or more hides nothing.
    return (left is not None and left < problem.kv_len - 1) or (
        right is not None and problem.offset + right < problem.kv_len - 1
    )


def _block_reason(problem: Problem, launch: Launch) -> str | None:
    least = LANES if not isinstance(launch, ForwardConfig) else 16 if _is_16_bit(problem) else 8
    if launch.block_q % least:
        return f"block_q={launch.block_q} is not a multiple of {least}, which its layout needs"
    # With a causal edge the shorter side is padded in front to the longer.
    both = max(problem.q_len, problem.kv_len)
    q_len, kv_len = (both, both) if problem.causal else (problem.q_len, problem.kv_len)
    for name, block, length in (
        ("block of rows", rows_of(launch), q_len),
        ("block_k_major", launch.block_k_major, kv_len),
    ):
        if block > round_up(length, LANES):
            return f"{name}={block} is longer than the {length} tokens there are"
    if isinstance(launch, ForwardConfig) and problem.batch % launch.block_b:
        return f"block_b={launch.block_b} does not divide the batch of {problem.batch}"
    return None


def _is_16_bit(problem: Problem) -> bool:
    return problem.dtype != "float32"
