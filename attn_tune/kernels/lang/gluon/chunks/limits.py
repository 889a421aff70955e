"""Problems that walks over chunks on Hopper refuse, and configs that cannot fit, whatever the op."""

from attn_tune.kernels.lang.gluon.chunks import COLUMNS, WIDTHS
from attn_tune.kernels.lang.gluon.chunks.space import programs
from attn_tune.kernels.lang.recurrent import Recurrent, refuses_gradients, rounds_states
from attn_tune.kernels.lang.triton.limits import refuses_device, refuses_triton, shared_limit
from attn_tune.schema.device import Device

_HOPPER = 90
# Each program has up to 1152 bytes for its descriptors, whose places are 32-bit numbers before Triton 3.8.
_MOST_PROGRAMS = 2**31 // 1152
# Gluon, the part of Triton that this is written in, has no descriptors made by programs in earlier versions.
_OLDEST_TRITON = (3, 6)
# Triton 3.6 stops at a backward for which no state is given, by an assertion of its own.
_OLDEST_WITHOUT_STATES = (3, 7)


def unsupported(problem: Recurrent, direction: str, device: Device) -> str | None:
    """The reason that these kernels cannot do the problem on this device, or None."""
    p, is_forward = problem, direction == "fwd"
    if reason := refuses_device(device) or refuses_gradients(problem, direction) or rounds_states(problem, direction):
        return reason
    if device.compute_capability != _HOPPER:
        return f"it is written for the warpgroup instructions of Hopper (sm_90); {device} is {device.family}"
    asked = {
        f"warpgroups multiply 16-bit numbers; dtype is {p.dtype}": p.dtype == "float32",
        f"h={p.head_dim} is none of {WIDTHS}, the rows of a state that registers hold": p.head_dim not in WIDTHS,
        f"v={p.v_head_dim} is no multiple of {COLUMNS}, the columns of a group of warps": p.v_head_dim % COLUMNS > 0,
    }
    found = next((reason for reason, wanted in asked.items() if wanted), None)
    # A backward walks in both directions, and has programs for tokens of no sequence.
    both = 2 * programs(p, 1) + 2 * p.num_value_heads * (p.v_head_dim // COLUMNS)
    found = found or _no_room(p, programs(p, 1) if is_forward else both)
    has_state = p.has_initial_state or p.has_final_state
    return found or refuses_triton(_OLDEST_TRITON if is_forward or has_state else _OLDEST_WITHOUT_STATES)


def too_many_programs(problem: Recurrent, groups: int, segments: int) -> str | None:
    """The reason that there is no room for the descriptors of so many programs, or None."""
    # With segments also those that walk the identity's columns.
    return _no_room(problem, programs(problem, groups) * segments * (1 if segments == 1 else 2))


def _no_room(problem: Recurrent, count: int) -> str | None:
    if count > _MOST_PROGRAMS:
        return f"b={problem.batch} makes {count} programs; there is room for the descriptors of {_MOST_PROGRAMS}"
    return None


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
