"""Calls of tokamax's attention function as tokamax's autotuning results name them, and its configs."""

from typing import Any

import jax
import jax.numpy as jnp
from tokamax._src.ops import op as library
from tokamax._src.ops.attention import (
    base,
    pallas_mosaic_gpu,
    pallas_mosaic_gpu_vjp,
    pallas_triton,
    pallas_triton_vjp,
)

from attn_tune.kernels.flash_attention import tokamax_mosaic, tokamax_triton
from attn_tune.kernels.flash_attention._tokamax.arguments import precision_of
from attn_tune.kernels.flash_attention.tokamax_mosaic import backward as mosaic_backward, forward as mosaic_forward
from attn_tune.kernels.flash_attention.tokamax_triton import backward as triton_backward, forward as triton_forward
from attn_tune.kernels.lang.libraries.features import visible_bounds
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.config import config_from_dict
from attn_tune.schema.errors import UnsupportedError

_SPECS = {spec.id: spec for spec in (tokamax_mosaic.SPEC, tokamax_triton.SPEC)}
_FORWARD = {
    tokamax_mosaic.SPEC.id: pallas_mosaic_gpu.PallasMosaicGpuFlashAttention,
    tokamax_triton.SPEC.id: pallas_triton.PallasTritonFlashAttention,
}
_BACKWARD = {
    tokamax_mosaic.SPEC.id: pallas_mosaic_gpu_vjp.PallasMosaicGpuFlashAttentionVjp,
    tokamax_triton.SPEC.id: pallas_triton_vjp.PallasTritonFlashAttentionVjp,
}


def bound_calls(kernel: str, direction: str, problem: Problem) -> list[library.BoundArguments]:
    """The calls that ``tokamax.dot_product_attention`` makes of ``kernel`` for ``problem``, on abstract arrays.

    The scale is the library's default, and that of the problem where it rounds differently. A forward has one call
    without residuals and one with them, which a derivative makes.

    Raises:
      UnsupportedError: the function cannot ask for the problem, or asks for another program; the message says why.
    """
    if reason := _refusal(kernel, problem):
        raise UnsupportedError(reason)
    scales = dict.fromkeys((problem.head_dim**-0.5, problem.scale))
    forward = [
        _bound(kernel, problem, scale=scale, residuals=residuals)
        for scale in (base.AUTO, *scales)
        for residuals in (False, True)
    ]
    found = forward if direction == "fwd" else [_derivative(kernel, problem, call) for call in forward[1::2]]
    return list({call.autotuning_cache_key: call for call in found}.values())


def library_config(kernel: str, direction: str, config: dict[str, Any]) -> Any:
    """The library's config of a row's ``config``.

    Raises:
      UnsupportedError: the library has one knob for what the row has two different values of.
      UsageError: the config has knobs that the kernel does not have.
    """
    own = config_from_dict(_SPECS[kernel].searches[direction].config, config)
    if kernel == tokamax_triton.SPEC.id:
        return (triton_forward if direction == "fwd" else triton_backward).library_config(own)
    if direction == "fwd":
        return mosaic_forward.library_config(own)
    dq, dkv = own.dq, own.dkv
    for knob in ("num_stages", "compute_warpgroups"):
        if getattr(dq, knob) != getattr(dkv, knob):
            raise UnsupportedError(f"its two launches have {knob} of their own, and tokamax has one for both")
    made = mosaic_backward.library_config(dkv)
    return pallas_mosaic_gpu_vjp.Config(
        block_q_dq=dq.block_q,
        block_kv_dq=dq.block_kv,
        block_q_dkv=made.block_q_dkv,
        block_kv_dkv=made.block_kv_dkv,
        num_stages=made.num_stages,
        compute_wgs=made.compute_wgs,
    )


def _refusal(kernel: str, p: Problem) -> str | None:
    bounds = visible_bounds(p)
    is_window = bounds not in ((None, None), (None, 0))
    reasons = {
        "tokamax's function has no sinks": p.has_sinks,
        "tokamax's key holds the number of the soft cap, which a row does not say": p.soft_cap is not None,
        "tokamax's function aligns at the top left, where lengths differ": bounds != (None, None) and p.offset != 0,
        "tokamax's function has no window that is open on one side": is_window and None in bounds,
        "tokamax's function gives this kernel a window as a dense mask, which is another program": (
            is_window and kernel == tokamax_triton.SPEC.id
        ),
        "tokamax's function has no such ids, lengths, positions, dropout or dtype of logits": (
            p.has_segments or p.has_positions or p.dropout_rate > 0 or p.logits_dtype != "float32"
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _bound(kernel: str, p: Problem, *, scale: Any, residuals: bool) -> library.BoundArguments:
    sizes = {"b": p.batch, "n": p.num_q_heads, "t": p.q_len, "s": p.kv_len, "1": 1}
    dense = p.mask_dims and jax.ShapeDtypeStruct([sizes[d] for d in p.mask_dims], jnp.bool_)
    left, right = visible_bounds(p)
    mask = base.Mask(dense or None, is_causal=right == 0)
    if left is not None and right is not None:
        mask &= base.CausalMask(offset=right, window_size=right + left + 1)
    return _FORWARD[kernel]().bind(
        jax.ShapeDtypeStruct((p.batch, p.q_len, p.num_q_heads, p.head_dim), p.dtype),
        jax.ShapeDtypeStruct((p.batch, p.kv_len, p.num_kv_heads, p.head_dim), p.dtype),
        jax.ShapeDtypeStruct((p.batch, p.kv_len, p.num_kv_heads, p.v_head_dim), p.dtype),
        bias=jax.ShapeDtypeStruct([sizes[d] for d in p.bias_dims], p.dtype) if p.bias_dims else None,
        mask=mask,
        logits_scale=scale,
        precision=precision_of(p),
        return_residuals=residuals,
    )


def _derivative(kernel: str, p: Problem, forward: library.BoundArguments) -> library.BoundArguments:
    """The call that the derivative of ``forward`` makes."""
    out = jax.ShapeDtypeStruct((p.batch, p.q_len, p.num_q_heads, p.v_head_dim), p.dtype)
    row = jax.ShapeDtypeStruct((p.batch, p.num_q_heads, p.q_len), jnp.float32)
    own = {"residuals": (row, row), "out": out, "dout": out, "return_residuals": False}
    return library.BoundArguments(_BACKWARD[kernel](), {**own, **forward.arguments, "return_residuals": False})
