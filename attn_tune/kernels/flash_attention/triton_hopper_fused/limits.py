"""Problems that the fused backward for Hopper refuses, and tiles that cannot fit."""

from attn_tune.kernels.flash_attention.costs import units
from attn_tune.kernels.flash_attention.triton_hopper_fused.config import ROWS, BackwardConfig
from attn_tune.kernels.flash_attention.triton_hopper_fused.plan import dq_columns, rows, shared_bytes, width
from attn_tune.kernels.lang.triton.limits import refuses_triton, shared_limit
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

HEAD_DIMS = (64, 128, 256)
_HOPPER = 90
# Columns of a tile of 16 bits that lie side by side in shared memory: 128 bytes.
PANEL = 64
# Gluon, the part of Triton that this is written in, has no copies that add in earlier versions.
_OLDEST_TRITON = (3, 9)
# Registers a thread for dk, dv, two tiles of logits and a share of dq. Of 240: not all live at once, and 224 spill a
# few addresses only.
_MOST_REGISTERS = 224


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that this kernel cannot do the problem on this device, or None."""
    del direction  # a backward only
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


def infeasible(problem: Problem, device: Device, config: BackwardConfig) -> str | None:
    """The reason that a config cannot run on the device, or None. Never refuses what compiles and fits."""
    needed, limit = shared_bytes(problem, config), shared_limit(device)
    if needed > limit:
        return f"its tiles need {needed} bytes of shared memory; {device.family} has {limit}"
    columns = min(width(problem, config), dq_columns(problem, config))
    if columns < PANEL:
        return f"a group of warps would make {columns} columns of a gradient; tiles lie in panels of {PANEL}"
    held = registers(problem, config)
    if held > _MOST_REGISTERS:
        return f"its accumulators and logits need {held} registers a thread; there are {_MOST_REGISTERS} for them"
    if config.num_programs > units(device):
        return f"its {config.num_programs} programs want a multiprocessor each; {device} has {units(device)}"
    return None


def registers(problem: Problem, config: BackwardConfig) -> int:
    """Registers a thread for what the products make: of 128 threads for 64 keys or rows."""
    return ROWS * (2 * width(problem, config) + 2 * rows(config) + dq_columns(problem, config)) // 128
