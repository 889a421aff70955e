"""Problems that the forward for Hopper refuses, and tiles that cannot fit."""

from attn_tune.kernels.flash_attention.costs import units
from attn_tune.kernels.lang.gluon.attention.config import ForwardConfig
from attn_tune.kernels.lang.gluon.attention.plan import shared_bytes
from attn_tune.kernels.lang.triton.limits import refuses_triton, shared_limit
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

HEAD_DIMS = (64, 128, 256)
_HOPPER = 90
# Gluon, the part of Triton that this is written in, calls its copies otherwise in earlier versions.
_OLDEST_TRITON = (3, 9)
# Registers a thread for the output, one tile of logits and its weights in 16 bits. Of 240; the rest is for addresses,
# statistics and what ptxas keeps apart. 224 spill (H64 with 256 keys: 144 bytes).
_MOST_REGISTERS = 208


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that this kernel cannot do the problem on this device, or None."""
    del direction  # a forward only
    if device.compute_capability != _HOPPER:
        return f"it is written for the warpgroup instructions of Hopper (sm_90); {device} is {device.family}"
    if problem.dtype == "float32":
        return "warpgroups multiply 16-bit numbers; dtype is float32"
    if problem.head_dim != problem.v_head_dim:
        return f"head_dim={problem.head_dim} and v_head_dim={problem.v_head_dim} differ"
    if problem.head_dim not in HEAD_DIMS:
        known = ", ".join(map(str, HEAD_DIMS))
        return f"head_dim={problem.head_dim} is none of {known}: a copy by descriptor takes whole powers of two"
    asked = {
        "it has no dense mask": problem.mask_dims is not None,
        "it has no bias: its loads find no registers": problem.bias_dims is not None,
        "it has no explicit positions": problem.has_positions,
        f"scale={problem.scale!r} is not positive": problem.scale <= 0,
    }
    return next((reason for reason, wanted in asked.items() if wanted), None) or refuses_triton(_OLDEST_TRITON)


def infeasible(problem: Problem, device: Device, config: ForwardConfig) -> str | None:
    """The reason that a config cannot run on the device, or None. Never refuses what compiles and fits."""
    needed, limit = shared_bytes(problem, config), shared_limit(device)
    if needed > limit:
        return f"its tiles need {needed} bytes of shared memory; {device.family} has {limit}"
    held = registers(problem, config)
    if held > _MOST_REGISTERS:
        return f"its accumulators, logits and weights need {held} registers a thread; there are 240"
    heads = problem.batch * problem.num_q_heads
    if heads % config.heads_per_section:
        return f"heads_per_section={config.heads_per_section} does not divide the {heads} heads of the batch"
    if config.num_programs > units(device):
        return f"its {config.num_programs} programs want a multiprocessor each; {device} has {units(device)}"
    return None


def registers(problem: Problem, config: ForwardConfig) -> int:
    """Registers a thread for what the two products read and write; a thread has half a row of 64."""
    return problem.head_dim // 2 + config.block_k // 2 + config.block_k // 4
