"""Problems that walks over chunks on Hopper refuse, and configs that cannot fit, whatever the op."""

from attn_tune.kernels.lang.gluon.chunks import COLUMNS, WIDTHS
from attn_tune.kernels.lang.recurrent import Recurrent
from attn_tune.kernels.lang.triton.limits import refuses_device, refuses_triton, shared_limit
from attn_tune.schema.device import Device

_HOPPER = 90
# Gluon, the part of Triton that this is written in, has no descriptors made by programs in earlier versions.
_OLDEST_TRITON = (3, 6)


def unsupported(problem: Recurrent, direction: str, device: Device) -> str | None:
    """The reason that these kernels cannot do the problem on this device, or None."""
    del direction  # a forward only
    p = problem
    if reason := refuses_device(device):
        return reason
    if device.compute_capability != _HOPPER:
        return f"it is written for the warpgroup instructions of Hopper (sm_90); {device} is {device.family}"
    asked = {
        f"warpgroups multiply 16-bit numbers; dtype is {p.dtype}": p.dtype == "float32",
        f"h={p.head_dim} is none of {WIDTHS}, the rows of a state that registers hold": p.head_dim not in WIDTHS,
        f"v={p.v_head_dim} is no multiple of {COLUMNS}, the columns of a group of warps": p.v_head_dim % COLUMNS > 0,
    }
    return next((reason for reason, wanted in asked.items() if wanted), None) or refuses_triton(_OLDEST_TRITON)


def too_many_columns(problem: Recurrent, groups: int) -> str | None:
    """The reason that a state's columns cannot be shared by so many groups of warps, or None."""
    if problem.v_head_dim % (COLUMNS * groups):
        return f"v={problem.v_head_dim} is no multiple of {COLUMNS * groups}, the columns of {groups} groups"
    return None


def too_many_slots(device: Device, needed: int) -> str | None:
    """The reason that slots of so many bytes do not fit shared memory, or None."""
    if needed > (limit := shared_limit(device)):
        return f"its slots need {needed} bytes of shared memory; {device.family} has {limit}"
    return None
