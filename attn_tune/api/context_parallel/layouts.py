"""The ways in which the tokens of a sequence lie on the devices that share it."""

import enum
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from attn_tune.api.meshes.axes import names_of
from attn_tune.ops.fields.arguments import check_array
from attn_tune.ops.fields.integers import as_integer
from attn_tune.schema.errors import UsageError, shown, unknown_name


class Layout(enum.StrEnum):
    """The tokens that device ``r`` of ``n`` holds, of a sequence of ``T``.

    Attributes:
      CONTIGUOUS: ``T/n`` consecutive ones. Of causal attention the last device then has the most to do.
      ZIGZAG: of ``2n`` equal chunks number ``r`` and number ``2n - 1 - r``. Causal work is the same on all devices.
      STRIPED: ``r``, ``r + n``, ``r + 2n``, and so on. Causal work is the same on all devices.
    """

    CONTIGUOUS = "contiguous"
    ZIGZAG = "zigzag"
    STRIPED = "striped"


def layout_of(name: Any) -> Layout:
    """The layout of this name.

    Raises:
      UsageError: there is none.
    """
    if name not in list(Layout):
        raise unknown_name("layout", str(name), [layout.value for layout in Layout])
    return Layout(name)


def zigzag_shard(x: Array, axis: int, n: int) -> Array:
    """``x`` whose tokens along ``axis`` are in the order in which ``n`` equal shards of it are the zigzag layout.

    Raises:
      UsageError: the length does not divide by ``2n``, or an argument is malformed; the message names it.
    """
    return _reordered(x, axis, n, Layout.ZIGZAG, back=False)


def zigzag_unshard(x: Array, axis: int, n: int) -> Array:
    """``x`` in the order of the sequence again: the inverse of ``zigzag_shard``.

    Raises:
      UsageError: the length does not divide by ``2n``, or an argument is malformed; the message names it.
    """
    return _reordered(x, axis, n, Layout.ZIGZAG, back=True)


def striped_shard(x: Array, axis: int, n: int) -> Array:
    """``x`` whose tokens along ``axis`` are in the order in which ``n`` equal shards of it are the striped layout.

    Raises:
      UsageError: the length does not divide by ``n``, or an argument is malformed; the message names it.
    """
    return _reordered(x, axis, n, Layout.STRIPED, back=False)


def striped_unshard(x: Array, axis: int, n: int) -> Array:
    """``x`` in the order of the sequence again: the inverse of ``striped_shard``.

    Raises:
      UsageError: the length does not divide by ``n``, or an argument is malformed; the message names it.
    """
    return _reordered(x, axis, n, Layout.STRIPED, back=True)


def local_positions(length: int, axis_name: Any, layout: str = "zigzag") -> Int[Array, " T"]:
    """The positions in the whole sequence of the ``length`` tokens that this device holds, inside ``jax.shard_map``.

    They are what rotary embeddings take.

    Args:
      length: tokens of one shard.
      axis_name: the mesh axis over which the sequence is sharded.
      layout: ``"zigzag"``, ``"contiguous"`` or ``"striped"``.

    Raises:
      UsageError: another layout, an axis that is not bound, or an odd length of the zigzag layout.
    """
    kind, size = layout_of(layout), axis_size(axis_name)
    check_length(kind, length)
    rank, token = jax.lax.axis_index(axis_name), jnp.arange(length, dtype=jnp.int32)
    if kind is Layout.STRIPED:
        return token * size + rank
    if kind is Layout.CONTIGUOUS:
        return token + rank * length
    chunk = length // 2
    return token + jnp.where(token < chunk, rank * chunk, (2 * size - 2 - rank) * chunk)


def axis_size(axis_name: Any) -> int:
    """The number of devices along a manual mesh axis, or along several.

    Raises:
      UsageError: the axis is not bound here, or named twice.
    """
    if len(set(names := names_of(axis_name))) < len(names):
        raise UsageError(f"axis_name {axis_name!r} names an axis twice")
    try:
        return jax.lax.axis_size(axis_name)
    except (NameError, TypeError):
        raise UsageError(
            f"axis_name {axis_name!r} is not bound here: call it inside jax.shard_map over a mesh with this axis"
        ) from None


def check_length(layout: Layout, length: int) -> None:
    """Check that a shard of this length can have the layout.

    Raises:
      UsageError: it cannot.
    """
    if layout is Layout.ZIGZAG and length % 2:
        raise UsageError(
            f"a shard of {length} tokens has no two equal chunks, which layout='zigzag' needs: pad the sequence to a "
            "multiple of twice the number of devices"
        )


def to_natural(x: Array, axis: int, n: int, layout: Layout) -> Array:
    """``x`` in the order of the sequence, from the shards of all ``n`` devices end to end."""
    return x if layout is Layout.CONTIGUOUS else _reordered(x, axis, n, layout, back=True)


def from_natural(x: Array, axis: int, n: int, layout: Layout) -> Array:
    """The shards of all ``n`` devices end to end, from ``x`` in the order of the sequence."""
    return x if layout is Layout.CONTIGUOUS else _reordered(x, axis, n, layout, back=False)


def _reordered(x: Array, axis: int, n: int, layout: Layout, *, back: bool) -> Array:
    x = check_array("x", x)
    devices, place = as_integer(n), as_integer(axis)
    if devices is None or devices < 1:
        raise UsageError(f"n must be a number of devices, 1 or more, got {shown(n)}")
    if place is None or not -x.ndim <= place < x.ndim:
        raise UsageError(f"axis must be one of the {x.ndim} axes of x, got {shown(axis)}")
    n, axis = devices, range(x.ndim)[place]
    length, parts = x.shape[axis], 2 * n if layout is Layout.ZIGZAG else n
    if length % parts:
        raise UsageError(
            f"axis {axis} has {length} tokens, which {parts} equal parts of layout={layout.value!r} do not divide: pad "
            "the sequence"
        )
    sharding = jax.typeof(x).sharding
    if sharding.mesh.are_all_axes_auto or sharding.spec[axis] is None:
        return _moved(x, axis, n, layout, back)
    # Explicit axes: XLA moves tokens between devices, and the result is sharded as what was given.
    move = functools.partial(_moved, axis=axis, n=n, layout=layout, back=back)
    moved: Any = jax.sharding.auto_axes(move, out_sharding=sharding)
    return moved(x)


def _moved(x: Array, axis: int, n: int, layout: Layout, back: bool) -> Array:
    length, before, after = x.shape[axis], x.shape[:axis], x.shape[axis + 1 :]
    if layout is Layout.STRIPED:
        split = (n, length // n) if back else (length // n, n)
        return x.reshape(*before, *split, *after).swapaxes(axis, axis + 1).reshape(x.shape)
    # By device: its own chunk, then the one that mirrors it.
    order = np.stack([np.arange(n), np.arange(2 * n - 1, n - 1, -1)], axis=1).reshape(-1)
    order = np.argsort(order) if back else order
    return jnp.take(x.reshape(*before, 2 * n, length // (2 * n), *after), order, axis=axis).reshape(x.shape)
