"""Problems that tokamax's Mosaic GPU attention cannot do on Hopper, and tiles that cannot fit."""

from attn_tune.kernels.flash_attention._tokamax.features import refusal
from attn_tune.kernels.flash_attention.tokamax_mosaic.config import (
    DkvConfig,
    DqConfig,
    ForwardConfig,
    Launch,
)
from attn_tune.kernels.flash_attention.tokamax_mosaic.shared import loads_mask, shared
from attn_tune.kernels.lang.libraries.features import not_on, visible_bounds
from attn_tune.kernels.lang.libraries.mosaic import HOPPER, WARPGROUP_ROWS, shared_reason
from attn_tune.kernels.lang.libraries.tokamax import wrong_version
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

_MAX_HEAD_DIM = 256
# Named barriers of a block. The kernel's own start at the seventh, and each stage takes one for keys, one for values
# and one for the mask.
_BARRIERS, _OTHER_BARRIERS = 16, 7


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that the kernel cannot do the problem on this device at all, or None."""
    if reason := not_on(device, (HOPPER, HOPPER), "this adapter of tokamax's Mosaic GPU attention"):
        return reason
    if problem.dtype == "float32":
        return "it takes bfloat16 and float16 only"
    for name, dim in (("head_dim", problem.head_dim), ("v_head_dim", problem.v_head_dim)):
        if dim > _MAX_HEAD_DIM:
            return f"{name}={dim} is above {_MAX_HEAD_DIM}, the widest product of a warpgroup"
    if direction == "bwd" and _is_cut(problem, WARPGROUP_ROWS, WARPGROUP_ROWS):
        return f"its bias gradient wants lengths that are multiples of {WARPGROUP_ROWS}"
    return refusal(problem) or wrong_version()


def infeasible(problem: Problem, device: Device, launch: Launch) -> str | None:
    """The reason that one launch cannot run, or None."""
    is_forward = isinstance(launch, ForwardConfig)
    reason = _forward_reason(problem, launch) if is_forward else _backward_reason(problem, launch)
    return reason or shared_reason(device, shared(problem, launch))


def _forward_reason(p: Problem, config: ForwardConfig) -> str | None:
    barriers = _OTHER_BARRIERS + config.num_stages * (3 if loads_mask(p, config) else 2)
    if barriers > _BARRIERS:
        return f"num_stages={config.num_stages} needs {barriers} named barriers; there are {_BARRIERS}"
    if config.split_k > 1:
        if p.mask_dims is not None or visible_bounds(p) != (None, None):
            return "split_k needs keys that are all visible"
        if p.kv_len % (config.split_k * config.block_kv):
            return f"split_k={config.split_k} parts of whole blocks do not make {p.kv_len} keys"
    if config.fold_q_sequence_heads and (p.mask_dims is not None or p.bias_dims is not None):
        return "folded heads would need a mask or bias of their own"
    return None


def _backward_reason(p: Problem, config: DqConfig | DkvConfig) -> str | None:
    if _is_cut(p, config.block_q, config.block_kv):
        return f"its bias gradient wants lengths that {config.block_q} rows and {config.block_kv} keys divide"
    return None


def _is_cut(p: Problem, rows: int, keys: int) -> bool:
    """Whether a block of the bias gradient, which leaves in whole ones, would reach over its end."""
    return p.bias_dims is not None and (p.q_len % rows != 0 or p.kv_len % keys != 0)
