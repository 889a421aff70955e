"""Conversions of ejkernel's arguments: platforms, masks, sinks and windows, and refusals of what no op takes."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from attn_tune.ops.fields.integers import as_integer
from attn_tune.ops.masks.mask_info import KV_PADDING, Q_PADDING, MaskInfo
from attn_tune.schema.errors import UsageError, warn

# Of other platforms there are no kernels here, or several of one op.
_PLATFORMS: Mapping[str, str | None] = {"auto": None, "xla": "xla", "triton": "triton"}
_WITHOUT_KERNELS = ("pallas", "cuda", "cute", "tilelang")


def kernel_of(function: str, platform: Any, cfg: Any = None) -> str | None:
    """The platform here of ejkernel's ``platform``, or else of ``cfg.platform``; None is the lookup's choice.

    The block sizes of ``cfg`` were chosen for kernels of another make: one warning says that they are left out.

    Raises:
      UsageError: ``platform`` is no platform of ejkernel.
    """
    if cfg is not None:
        warn(f"{function}: cfg holds block sizes of ejkernel's kernels; here packs and `attn-tune sweep` choose them")
        platform = getattr(cfg, "platform", None) if platform is None else platform
    name = getattr(platform, "value", platform)
    if name in _WITHOUT_KERNELS:
        warn(f"{function}: platform={name!r} names no kernel here; the lookup chooses one")
        return None
    if name is not None and name not in _PLATFORMS:
        raise UsageError(f"{function}: platform must be one of {[*_PLATFORMS, *_WITHOUT_KERNELS]}, got {platform!r}")
    return None if name is None else _PLATFORMS[name]


def leave_out(function: str, **arguments: Any) -> None:
    """One warning that names those of ``arguments``, which change no result, that are neither None nor False."""
    given = [name for name, value in arguments.items() if value is not None and value is not False]
    if given:
        warn(f"{function}: {', '.join(given)} tune ejkernel's kernels and change no result: left out here")


def refuse(function: str, instead: str, **arguments: Any) -> None:
    """Raise for the first of ``arguments`` that is neither None nor False; ``instead`` is the way out.

    Raises:
      UsageError: one of them is given.
    """
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise UsageError(f"{function}: {name} cannot be honoured here; {instead}")


def refuse_mesh(function: str, mesh: Any, in_specs: Any, out_specs: Any) -> None:
    """Raise where a mesh is given.

    Raises:
      UsageError: one of the three is given.
    """
    refuse(
        function,
        "shard the arrays and call it under jax.jit, which keeps them sharded, or inside jax.shard_map",
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
    )


def mask_of(mask_info: Any, *, positions: bool = False) -> MaskInfo | None:
    """Our mask of ejkernel's ``MaskInfo`` or of ours; segments stay O(N), and ids below zero are padding.

    Positions of ejkernel's are kept with ``positions``: some of its ops mask by them, others leave them to rotary
    embeddings. Those of ours are always kept.

    Raises:
      UsageError: it is neither, or a batch of segment ids differs between heads.
    """
    if mask_info is None or isinstance(mask_info, MaskInfo):
        return mask_info
    names = ("_attention_mask", "_q_segment_ids", "_kv_segment_ids")
    if not all(hasattr(mask_info, name) for name in names):
        raise UsageError(f"mask_info must be a MaskInfo of ejkernel or of attn_tune, got {type(mask_info).__name__}")
    dense, q_ids, kv_ids = (getattr(mask_info, name) for name in names)
    placed: dict[str, Any] = {}
    if positions and mask_info.q_positions is not None and mask_info.kv_positions is not None:
        placed = {"q_positions": mask_info.q_positions, "kv_positions": mask_info.kv_positions}
    if q_ids is None and kv_ids is None:
        dense = mask_info.get_or_compute_attention_mask() if dense is None else dense
        return MaskInfo(attention_mask=dense, **placed)
    q_ids, kv_ids = (kv_ids, kv_ids) if q_ids is None else (q_ids, q_ids if kv_ids is None else kv_ids)
    if q_ids.ndim != 2 or kv_ids.ndim != 2:
        raise UsageError("mask_info must have segment ids [batch, length]; give those of each head as a dense mask")
    return MaskInfo(
        attention_mask=dense,
        q_segment_ids=jnp.where(q_ids < 0, Q_PADDING, q_ids),
        kv_segment_ids=jnp.where(kv_ids < 0, KV_PADDING, kv_ids),
        **placed,
    )


def from_top_left(mask: MaskInfo | None, batch: int, q_len: int, kv_len: int) -> MaskInfo | None:
    """``mask`` with row ``i`` at position ``i`` where lengths differ, as those kernels of ejkernel align."""
    if q_len == kv_len or (mask is not None and mask.q_positions is not None):
        return mask
    rows, columns = (jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), (batch, n)) for n in (q_len, kv_len))
    placed = MaskInfo(q_positions=rows, kv_positions=columns)
    return placed if mask is None else mask & placed


def dense_of(mask_info: Any) -> Array | None:
    """``[B, 1 | N, T, S]`` of a mask, or None where there is none."""
    mask = mask_of(mask_info)
    return None if mask is None else mask.get_or_compute_attention_mask()


def sinks_by_head(softmax_aux: Any, heads: int, kv_heads: int) -> Any:
    """Sinks of ``softmax_aux``, in which a vector of ``kv_heads`` is one sink a key/value head."""
    if softmax_aux is None:
        return None
    sinks = jnp.asarray(softmax_aux)
    return sinks[:, None] if sinks.ndim == 1 and sinks.shape[0] == kv_heads != heads else sinks


def sinks_of_all(softmax_aux: Any) -> Any:
    """Sinks of ``softmax_aux``, in which a vector belongs to all heads, one of ``N`` entries too."""
    sinks = None if softmax_aux is None else jnp.asarray(softmax_aux)
    return sinks[None] if sinks is not None and sinks.ndim == 1 else sinks


def refuse_capped_bias(function: str, bias: Any, logits_soft_cap: float | None) -> None:
    """Raise where a bias meets a soft cap: ejkernel caps their sum, our ops add the bias after the cap.

    Raises:
      UsageError: both are given.
    """
    if bias is not None and logits_soft_cap is not None:
        raise UsageError(
            f"{function}: bias with logits_soft_cap cannot be honoured: ejkernel caps their sum, the op "
            "adds the bias after the cap; call attn_tune.flash_attention for that, or attention by this module's name"
        )


def window_before(function: str, sliding_window: Any) -> int | None:
    """The tokens before its own that a query sees, of ejkernel's ``w`` that counts its own; none or less is all.

    Raises:
      UsageError: it is a pair, as of ops that see to the right.
    """
    if sliding_window is None:
        return None
    window = as_integer(sliding_window)
    if window is None:
        raise UsageError(f"{function}: sliding_window must be an integer, got {sliding_window!r}")
    return window - 1 if window > 0 else None


def check_mask_value(function: str, mask_value: float | None) -> None:
    """Raise unless what is hidden gets no weight, as everywhere here.

    Raises:
      UsageError: it is so near to the logits that hidden keys would count.
    """
    if mask_value is not None and not mask_value < -1e9:
        raise UsageError(f"{function}: mask_value cannot be honoured here, hidden keys never count; leave it out")
