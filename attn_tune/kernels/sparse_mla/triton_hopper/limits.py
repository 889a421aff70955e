"""Problems that sparse latent attention for Hopper refuses, and slots that cannot fit."""

from attn_tune.kernels.lang.gluon.latents import PANEL, shared_bytes
from attn_tune.kernels.lang.triton.limits import refuses_device, refuses_triton, shared_limit
from attn_tune.kernels.sparse_mla.triton_hopper.config import Config
from attn_tune.kernels.sparse_mla.triton_hopper.plan import widths
from attn_tune.ops.sparse_mla.problem import Problem
from attn_tune.schema.device import Device

_HOPPER = 90
MAX_LATENT = 512
# A copy takes 16 bytes, which must begin at multiples of that.
_MULTIPLE = 8
_OLDEST_TRITON = (3, 6)


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that this kernel cannot do the problem on this device, or None."""
    p = problem
    if reason := refuses_device(device):
        return reason
    if device.compute_capability != _HOPPER:
        return f"it is written for the warpgroup instructions of Hopper (sm_90); {device} is {device.family}"
    asked = {
        f"warpgroups multiply 16-bit numbers; dtype is {p.dtype}": p.dtype == "float32",
        f"h={p.head_dim} is no multiple of {_MULTIPLE}": p.head_dim % _MULTIPLE > 0,
        f"v={p.v_head_dim} is no multiple of {_MULTIPLE}": p.v_head_dim % _MULTIPLE > 0,
        f"v={p.v_head_dim} is above {MAX_LATENT}: the output does not fit the registers": p.v_head_dim > MAX_LATENT,
        f"h={p.head_dim} has more than {PANEL} columns behind those of values": widths(p)[1] > PANEL,
        f"scale={p.scale!r} is not positive": p.scale <= 0,
    }
    return next((reason for reason, wanted in asked.items() if wanted), None) or refuses_triton(_OLDEST_TRITON)


def infeasible(problem: Problem, device: Device, config: Config) -> str | None:
    """The reason that a config cannot run on the device, or None. Never refuses what compiles and fits."""
    needed, limit = shared_bytes(*widths(problem), config.num_stages), shared_limit(device)
    return f"its slots need {needed} bytes of shared memory; {device.family} has {limit}" if needed > limit else None
