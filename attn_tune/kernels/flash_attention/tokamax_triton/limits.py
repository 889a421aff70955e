"""Problems that tokamax's Pallas-Triton attention cannot do, and configs that cannot run or would be wrong."""

from attn_tune.kernels.flash_attention._tokamax.features import refusal
from attn_tune.kernels.flash_attention.tokamax_triton.config import (
    MIN_BLOCK,
    BackwardConfig,
    ForwardConfig,
)
from attn_tune.kernels.lang.libraries.features import not_on, visible_bounds
from attn_tune.kernels.lang.libraries.tokamax import wrong_version
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

_MAX_HEAD_DIM = 256
_CAPABILITIES = (80, 90)
# The backward walks the tiles on the diagonal in halves.
_DIAGONAL_PARTS = 2


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that the kernel cannot do the problem on this device at all, or None."""
    if reason := not_on(device, _CAPABILITIES, "tokamax's Pallas-Triton attention"):
        return reason
    for name, dim in (("head_dim", problem.head_dim), ("v_head_dim", problem.v_head_dim)):
        if dim > _MAX_HEAD_DIM:
            return f"{name}={dim} is above {_MAX_HEAD_DIM}: an accumulator of one tile does not fit the registers"
    reason = refusal(problem) or (_of_backward(problem) if direction == "bwd" else None)
    return reason or wrong_version()


def infeasible(problem: Problem, device: Device, config: ForwardConfig | BackwardConfig) -> str | None:
    """The reason that a config cannot run, or that its result is wrong; None otherwise."""
    if isinstance(config, BackwardConfig):
        return _diagonal_reason(problem, config)
    return _forward_reason(problem, config)


def _of_backward(p: Problem) -> str | None:
    if p.soft_cap is not None:
        return "its backward has no tanh soft cap"
    bounds = visible_bounds(p)
    if bounds == (None, None) or (bounds == (None, 0) and p.q_len == p.kv_len):
        return None
    return "its backward knows windows, and lengths that differ under a causal mask, as a dense mask only"


def _forward_reason(p: Problem, c: ForwardConfig) -> str | None:
    if c.split_k > 1:
        if p.mask_dims is not None or visible_bounds(p) != (None, None):
            return "split_k needs keys that are all visible"
        if p.kv_len % c.split_k:
            return f"split_k={c.split_k} equal parts do not make {p.kv_len} keys"
    for name, piece, dim in (
        ("block_d", c.block_d, p.head_dim),
        ("block_d_out", c.block_d_out, p.v_head_dim),
    ):
        if piece is None:
            continue
        if power(p.head_dim) != p.head_dim or power(p.v_head_dim) != p.v_head_dim:
            return f"{name} needs head dims that are powers of two"
        if dim % piece:
            return f"{name}={piece} does not divide {dim}"
    if c.pack_mask and (p.mask_dims is None or p.mask_dims[3] == "1"):
        return "pack_mask needs a dense mask along the keys"
    return None


def _diagonal_reason(p: Problem, c: BackwardConfig) -> str | None:
    """Under a causal mask the tiles that pass must end where those that stay begin, or pairs are lost or seen twice."""
    if visible_bounds(p) == (None, None):
        return None
    for stays, passes in (("block_n1", "block_m1"), ("block_m2", "block_n2")):
        if getattr(c, stays) % getattr(c, passes):
            return f"causal, {passes}={getattr(c, passes)} must divide {stays}={getattr(c, stays)}"
        if getattr(c, passes) < _DIAGONAL_PARTS * MIN_BLOCK:
            return f"causal, {passes} is walked in halves, which must have {MIN_BLOCK} rows or keys"
    return None


def power(dim: int) -> int:
    """The power of two that covers ``dim``; tiles are that wide."""
    return 1 << (dim - 1).bit_length()
