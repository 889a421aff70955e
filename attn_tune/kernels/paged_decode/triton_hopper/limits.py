"""Problems that decoding over latents for Hopper refuses, and slots that cannot fit."""

from attn_tune.kernels.lang.gluon.latents import PANEL, shared_bytes
from attn_tune.kernels.lang.triton.cache_limits import refuses_problem
from attn_tune.kernels.lang.triton.limits import refuses_triton, shared_limit
from attn_tune.kernels.paged_decode.triton_hopper.config import Config
from attn_tune.kernels.paged_decode.triton_hopper.plan import widths
from attn_tune.ops.fields.cache import LATENT, SAME
from attn_tune.ops.paged_decode.problem import Problem
from attn_tune.schema.device import Device

_HOPPER = 90
# A copy by descriptor starts rows at multiples of 16 bytes.
_MULTIPLE = 8
# Rows after which the pattern repeats in which such a copy spreads rows over the banks of shared memory.
_LEAST_CHUNK = 8
# Gluon, the part of Triton that this is written in, has no such descriptors in earlier versions.
_OLDEST_TRITON = (3, 6)


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that this kernel cannot do the problem on this device, or None."""
    del direction  # a forward only
    p = problem
    if reason := refuses_problem(p, device, read="lengths"):
        return reason
    if device.compute_capability != _HOPPER:
        return f"it is written for the warpgroup instructions of Hopper (sm_90); {device} is {device.family}"
    rest = widths(p.head_dim, p.v_head_dim)[1]
    asked = {
        f"it walks latents, whose values are columns of keys; layout is {p.layout}": p.layout != LATENT,
        f"warpgroups multiply 16-bit numbers; dtype is {p.dtype}": p.dtype == "float32",
        f"it multiplies keys as they are copied; kv={p.kv_dtype} holds codes": p.kv_dtype != SAME,
        f"h={p.head_dim} is no multiple of {_MULTIPLE}": p.head_dim % _MULTIPLE > 0,
        f"v={p.v_head_dim} is no multiple of {_MULTIPLE}": p.v_head_dim % _MULTIPLE > 0,
        f"scale={p.scale!r} is not positive": p.scale <= 0,
        f"h={p.head_dim} has more than {PANEL} columns behind those of values": rest > PANEL,
        f"page={p.page_size} is no multiple of {_LEAST_CHUNK}, the rows of the least copy by descriptor": p.page_size
        % _LEAST_CHUNK
        > 0,
    }
    return next((reason for reason, wanted in asked.items() if wanted), None) or refuses_triton(_OLDEST_TRITON)


def infeasible(problem: Problem, device: Device, config: Config) -> str | None:
    """The reason that a config cannot run on the device, or None. Never refuses what compiles and fits."""
    columns = widths(problem.head_dim, problem.v_head_dim)
    needed, limit = shared_bytes(*columns, config.num_stages), shared_limit(device)
    return f"its slots need {needed} bytes of shared memory; {device.family} has {limit}" if needed > limit else None
