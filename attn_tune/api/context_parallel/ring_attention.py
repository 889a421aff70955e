"""The public ``ring_attention``: attention of a sequence that is sharded over the devices of a mesh axis.

It is a composition over ``flash_attention``, not an op: every product is looked up as what it is on one device.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn_tune.api.context_parallel.gathered import all_gather, check_ulysses, ulysses
from attn_tune.api.context_parallel.hops import Ring, plan_of
from attn_tune.api.context_parallel.layouts import axis_size, check_length, layout_of, local_positions
from attn_tune.api.context_parallel.ring import Local, Settings, ring
from attn_tune.api.meshes.deferred import as_varying
from attn_tune.api.meshes.sharding import explicit_axes
from attn_tune.api.request import request_of
from attn_tune.ops.fields.arguments import as_mask, check_array, check_qkv, checked_flag
from attn_tune.ops.fields.integers import as_integer
from attn_tune.ops.fields.sinks import sinks_of
from attn_tune.ops.flash_attention.normalise import check_rows
from attn_tune.ops.flash_attention.options import options_of
from attn_tune.ops.flash_attention.problem import NAME
from attn_tune.ops.masks.mask_info import KV_PADDING, Q_PADDING, MaskInfo
from attn_tune.schema.errors import UsageError, shown, unknown_name

STRATEGIES = ("ring", "ulysses", "all_gather")
# Operations for each byte that a hop transfers from which on a ring hides its transfers: 600 TFLOP/s beside 400 GB/s,
# what attention and one direction of NVLink reach on a Hopper GPU.
_HIDES = 1500
# Of documents; those above are padding's.
_HIGHEST_ID = min(Q_PADDING, KV_PADDING) - 1


def ring_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K V"],
    softmax_aux: Float[Array, "..."] | None = None,
    *,
    axis_name: Any,
    layout: str = "zigzag",
    strategy: str | None = None,
    chunks: int = 1,
    causal: bool = False,
    sliding_window: int | tuple[int | None, int | None] | None = None,
    q_segment_ids: Int[Array, "B T"] | None = None,
    kv_segment_ids: Int[Array, "B T"] | None = None,
    lengths: Int[Array, " B"] | None = None,
    softmax_scale: float | None = None,
    logits_soft_cap: float | None = None,
    precision: Any = jax.lax.Precision.DEFAULT,
    logits_dtype: Any = jnp.float32,
    platform: str | Mapping[str, str | None] | None = None,
    cfg: Any = None,
    return_lse: bool = False,
) -> Any:
    """Attention of a sequence that is sharded over the devices of a mesh axis, inside ``jax.shard_map``.

    Example::

        attend = jax.shard_map(
            functools.partial(attn_tune.ring_attention, axis_name="cp", causal=True),
            mesh=mesh, in_specs=(P(None, "cp"),) * 3, out_specs=P(None, "cp"),
        )
        n = mesh.shape["cp"]
        out = zigzag_unshard(attend(*(zigzag_shard(x, 1, n) for x in (query, key, value))), 1, n)

    Every device holds as many tokens of one sequence, ``T`` here, the same ones of query, key and value. The result is
    that of ``flash_attention`` over the whole sequence, but for roundings. It is differentiable in query, key, value
    and softmax_aux, with the returned ``lse`` taking part: once, in reverse mode. Each product is one call of
    ``flash_attention``, looked up by its shape on one device.

    - ``"ring"``: keys and values go round, and results are merged by their lse in float32. The next transfer runs
      beside the products of a hop. The backward is a second such ring; each hop's dk and dv go straight to the owner.
      No device ever holds more than two devices' keys. Windows leave out the hops, and the tokens, beyond their reach.
    - ``"ulysses"``: every device exchanges its tokens of all heads for all tokens of its share of the heads.
    - ``"all_gather"``: every device gathers all keys and values.

    Args:
      softmax_aux: attention sinks, as in ``flash_attention``; they count once.
      axis_name: the mesh axis over which the sequence is sharded; of several the tuple that the spec of the sequence
        has, in its order, which need not be the mesh's.
      layout: ``"zigzag"``, ``"contiguous"`` or ``"striped"``: which tokens a device holds. Zigzag and striped share
        causal work evenly; with contiguous shards causal attention by ``"ring"`` takes about twice as long.
      strategy: None is ``"ring"`` with a window, and where its products hide its transfers: from ``3000 K / N`` tokens
        a device on (600 TFLOP/s beside 400 GB/s). Of fewer it is ``"ulysses"`` where the heads divide.
      chunks: groups of heads that are passed on and computed one after the other; must divide ``K``. More of them
        hide more of the first and last transfers behind products, which are then smaller.
      causal: a token sees itself and those before it in the sequence, in every layout.
      sliding_window: ``w`` or ``(left, right)`` in positions of the sequence, as in ``flash_attention``.
      q_segment_ids: ``[B, T]`` integers of this device's tokens; only equal ids attend. With ``lengths`` the three
        highest ids of 32 bits are one.
      kv_segment_ids: the same for the keys; None is ``q_segment_ids``.
      lengths: ``[B]``, the tokens of each whole sequence that count. What follows is padding, which may hold anything;
        its outputs and gradients are zero.
      softmax_scale: default ``1/sqrt(H)``.
      logits_soft_cap: logits become ``cap * tanh(logits / cap)``.
      precision: of the products, as in ``flash_attention``.
      logits_dtype: the logits are rounded to it, as in ``flash_attention``.
      platform: the kernels to use, as in ``flash_attention``.
      cfg: the configs to use, as in ``flash_attention``.
      return_lse: also return the natural logarithm of the softmax denominator, ``[B, N, T]`` float32.

    Returns:
      ``out``, like ``query`` with values' width, or ``(out, lse)``.

    Raises:
      UsageError: an argument is malformed, or the axis is not bound, or the ``shard_map`` leaves out an explicit mesh
        axis that shards an array; the message names it.
      UnsupportedError: no kernel can do this here, or not the requested one; the heads do not divide for
        ``"ulysses"``; or a second derivative was asked for.
    """
    shape = check_qkv(query, key, value)
    kind, size = layout_of(layout), axis_size(axis_name)
    if shape["T"] != shape["S"]:
        raise UsageError(
            f"query has {shape['T']} tokens on a device and key {shape['S']}: ring_attention is self-attention; with "
            "all keys on every device call flash_attention"
        )
    check_length(kind, shape["T"])
    if strategy not in (None, *STRATEGIES):
        raise unknown_name("strategy", str(strategy), list(STRATEGIES))
    parts = as_integer(chunks)
    if parts is None or parts < 1 or shape["K"] % parts:
        raise UsageError(f"chunks must divide the {shape['K']} key/value heads, got {shown(chunks)}")
    return_lse = checked_flag("return_lse", return_lse)
    devices = Ring(axis_name, size, kind)
    mask = as_mask(
        mask_info=None,
        attention_mask=None,
        q_segment_ids=q_segment_ids,
        kv_segment_ids=kv_segment_ids,
        causal=causal,
        sliding_window=sliding_window,
    )
    # Before a strategy gathers them, so that the message has the shapes of this device.
    for name in ("q_segment_ids", "kv_segment_ids"):
        if (ids := getattr(mask, name)) is not None:
            check_rows(name, ids, (shape["B"], shape["T"]))
    local = Local(jnp.asarray(query), jnp.asarray(key), jnp.asarray(value), mask.q_segment_ids, mask.kv_segment_ids)
    if softmax_aux is not None:
        local = local._replace(sinks=sinks_of(softmax_aux, shape["N"], shape["K"]))
    if others := explicit_axes(local):
        raise UsageError(
            f"the arrays are sharded along {', '.join(others)} too, explicit axes that this jax.shard_map leaves out: "
            "name them in its axes and specs"
        )
    counts = None
    if lengths is not None:
        counts = _counted(devices, lengths, shape)
        local = _without_padding(local, counts)
    # Each group of heads is a call of its own.
    heads = {"N": shape["N"] // parts, "K": shape["K"] // parts}
    chosen = strategy or strategy_of(devices, shape | heads, mask)
    if chosen == "ulysses":
        check_ulysses(devices, heads["N"], heads["K"], parts)
    arguments: dict[str, Any] = {"logits_soft_cap": logits_soft_cap, "softmax_scale": softmax_scale}
    arguments |= {"precision": precision, "logits_dtype": logits_dtype}

    def attended(local: Local) -> Any:
        if chosen == "ring":
            options = options_of(head_dim=shape["H"], dropout_prob=0.0, **arguments)
            settings = Settings(options, request_of(NAME, platform, cfg), return_lse)
            right = 0 if mask.causal else mask.window[1]

            def planned():
                return plan_of(devices, (mask.window[0], right), (shape["B"], shape["T"]))

            return ring(settings, planned, as_varying(local))
        run = ulysses if chosen == "ulysses" else all_gather
        more = arguments | {"causal": causal, "sliding_window": sliding_window, "platform": platform, "cfg": cfg}
        return run(devices, local, return_lse, more)

    done = [attended(part) for part in _by_heads(local, parts)]
    out = jnp.concatenate([out for out, _ in done], axis=2)
    if counts is not None:
        # They are zero already; this is for their cotangents, which may not be numbers.
        out = jnp.where(counts[..., None, None], out, 0)
    return (out, jnp.concatenate([lse for _, lse in done], axis=1)) if return_lse else out


def strategy_of(devices: Ring, shape: Mapping[str, int], mask: MaskInfo) -> str:
    """The strategy of a call that names none.

    A hop of a ring multiplies ``2 T^2 N H`` numbers of causal queries and keys, and transfers ``2 T K H`` of two bytes.
    """
    if mask.window != (None, None) or shape["T"] * shape["N"] >= 2 * _HIDES * shape["K"]:
        return "ring"
    return "ring" if shape["K"] % devices.size or shape["N"] % devices.size else "ulysses"


def _counted(devices: Ring, lengths: Any, shape: Mapping[str, int]) -> Array:
    """``[B, T]``: whether a token of this device counts."""
    lengths = check_array("lengths", lengths)
    if lengths.shape != (shape["B"],) or not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise UsageError(f"lengths must be integers {[shape['B']]}, got {lengths.dtype}{list(lengths.shape)}")
    return local_positions(shape["T"], devices.axis_name, devices.layout)[None] < lengths[:, None]


def _without_padding(local: Local, counts: Array) -> Local:
    """Zeros for padding, and ids that never meet."""
    q, k, v = (jnp.where(counts[..., None, None], x, 0) for x in (local.q, local.k, local.v))
    q_ids, kv_ids = (
        jnp.where(counts, 0 if ids is None else jnp.minimum(ids, _HIGHEST_ID), padding)
        for ids, padding in ((local.q_segments, Q_PADDING), (local.kv_segments, KV_PADDING))
    )
    return local._replace(q=q, k=k, v=v, q_segments=q_ids, kv_segments=kv_ids)


def _by_heads(local: Local, chunks: int) -> list[Local]:
    if chunks == 1:
        return [local]
    split = [jnp.split(x, chunks, axis=2) for x in (local.q, local.k, local.v)]
    sinks = [None] * chunks if local.sinks is None else jnp.split(local.sinks, chunks)
    return [local._replace(q=q, k=k, v=v, sinks=own) for q, k, v, own in zip(*split, sinks, strict=True)]
