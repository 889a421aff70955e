"""The hops of a ring: which keys meet which queries when, such that every device does the same at every hop.

Positions never reach a kernel. Each product is a rectangle of consecutive tokens on both sides, and what a mask leaves
of it is a band along its diagonal: a ``causal`` or ``sliding_window`` of an ordinary call, known when it is traced.
Only which of the chunks it holds a device takes is known to the device alone.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from attn_tune.api.context_parallel.layouts import Layout, axis_size
from attn_tune.api.meshes.axes import names_of
from attn_tune.ops.masks.visibility import Window

type Part = tuple[Array, Bool[Array, ""] | None]
type Place = tuple[slice, tuple[Part, ...]]
ALL = slice(None)


class Band(NamedTuple):
    """The part of a square of queries and keys that a mask leaves: a rectangle, and the bounds within.

    Attributes:
      rows: the queries that see any of the keys.
      keys: the keys that any of them sees.
      window: ``(left, right)`` of the call over these, aligned as ever at the bottom right.
    """

    rows: slice = ALL
    keys: slice = ALL
    window: Window = (None, None)


class Hop(NamedTuple):
    """One product: the queries of a device with keys that have come some places.

    Every array has batch and tokens in front.

    Attributes:
      shift: the places by which the keys have moved from their owner.
      band: what the mask leaves.
      queries: takes the product's queries, from arrays of the device's own.
      chosen_keys: takes the product's keys, from arrays of the keys that have come, cut to ``band.keys`` already.
      counts: the queries of the product ``[1 | batch, 1 | tokens]`` whose result counts; None for all.
      place: where results of the product belong: disjoint ``(tokens, ((values, on which devices), ...))``, of all
        tokens in order where there is more than one.
    """

    shift: int
    band: Band
    queries: Callable[[Array], Array]
    chosen_keys: Callable[[Array], Array]
    counts: Bool[Array, "_b _t"] | None
    place: Callable[[Array], list[Place]]


class Plan(NamedTuple):
    """All hops of one call on one device.

    Attributes:
      own: the hop of a device's own keys.
      chains: hops in whose order keys are passed on, each chain starting with a device's own. The keys that a hop
        needs are among those that the one before it had.
      move: ``(array, places)``: every chunk of keys that many places on, to where it is that far from its owner.
      split: the form of a local array in which hops see it; ``join`` is its inverse.
    """

    own: Hop
    chains: tuple[tuple[Hop, ...], ...]
    move: Callable[[Array, int], Array]
    split: Callable[[Array], Array]
    join: Callable[[Array], Array]


class Ring(NamedTuple):
    """The devices that share a sequence.

    Attributes:
      axis_name: the mesh axis, or several.
      size: the number of devices.
      layout: the way in which the tokens lie on them.
    """

    axis_name: Any
    size: int
    layout: Layout


def plan_of(ring: Ring, window: Window, shape: tuple[int, int]) -> Plan:
    """The hops for a mask.

    Args:
      ring: the devices.
      window: ``(left, right)`` in tokens of the whole sequence, None where it bounds nothing; causal is ``right=0``.
      shape: batch and tokens of a shard.
    """
    batch, length = shape
    whole = ring.size * length - 1
    left, right = (None if bound is None or bound >= whole else bound for bound in window)
    if (left, right) == (None, None):
        return _unmasked(ring)
    if ring.layout is Layout.STRIPED:
        return _striped(ring, (left, right), length)
    if ring.layout is Layout.ZIGZAG and (left, right) == (None, 0):
        return _zigzag(ring, length)
    return _by_distance(ring, (left, right), batch, length)


def band_of(length: int, most: int | None, least: int | None) -> Band | None:
    """The pairs of a square with ``least <= row - column <= most``; None where there are none."""
    last = length - 1
    if (most is not None and most < -last) or (least is not None and least > last):
        return None
    most = None if most is not None and most >= last else most
    least = None if least is not None and least <= -last else least
    if most is not None and most < 0:
        # Only the first rows see any, and only the last keys; counted from these the diagonal is the bound.
        right = None if least is None else most - least
        return Band(slice(0, length + most), slice(-most, length), (0, right))
    if least is not None and least > 0:
        left = None if most is None else most - least
        return Band(slice(least, length), slice(0, length - least), (left, 0))
    return Band(window=(most, None if least is None else -least))


def _same(x: Array) -> Array:
    return x


def _in_place(rows: slice) -> Callable[[Array], list[Place]]:
    return lambda y: [(rows, ((y, None),))]


def _hop(shift: int, band: Band, counts: Array | None = None) -> Hop:
    rows = band.rows
    return Hop(shift, band, lambda x: x[:, rows], _same, counts, _in_place(rows))


def _rotation(ring: Ring) -> Callable[[Array, int], Array]:
    """Moves along the closed ring."""

    def move(x: Array, places: int) -> Array:
        if places % ring.size == 0:
            return x
        pairs = [(source, (source + places) % ring.size) for source in range(ring.size)]
        return _permuted(ring, x, pairs)

    return move


def _unmasked(ring: Ring) -> Plan:
    hops = tuple(_hop(shift, Band()) for shift in range(1, ring.size))
    return Plan(_hop(0, Band()), (hops,), _rotation(ring), _same, _same)


def _zigzag(ring: Ring, length: int) -> Plan:
    """Causal attention over chunks ``r`` and ``2n - 1 - r``, of which every hop does two whole products of chunks.

    The later chunk of every device sees the earlier one of every other. Of keys from a lower rank the earlier chunk
    also sees the earlier one; of keys from a higher rank the later chunk also sees the later one (the two cases of
    the balanced ring of Llama 3's and of Megatron's context parallelism).
    """
    rank, chunk = jax.lax.axis_index(ring.axis_name), length // 2
    early, late = slice(0, chunk), slice(chunk, length)

    def hop(shift: int) -> Hop:
        is_from_above = rank < shift

        def place(y: Array) -> list[Place]:
            first, second = jnp.split(y, 2)
            return [(early, ((second, ~is_from_above),)), (late, ((first, None), (second, is_from_above)))]

        return Hop(
            shift,
            Band(),
            lambda x: jnp.concatenate([x[:, late], jnp.where(is_from_above, x[:, late], x[:, early])]),
            lambda x: jnp.concatenate([x[:, early], jnp.where(is_from_above, x[:, late], x[:, early])]),
            None,
            place,
        )

    hops = tuple(hop(shift) for shift in range(1, ring.size))
    return Plan(_hop(0, Band(window=(None, 0))), (hops,), _rotation(ring), _same, _same)


def _striped(ring: Ring, window: Window, length: int) -> Plan:
    """Masks over stripes: keys that have come ``h`` places are ``h`` tokens behind the queries of the same row.

    Those that passed the end of the ring are ``h`` behind those of the row before. Against these all rows move up by
    one: of ``T + 1`` rows either the first or the last is empty.
    """
    rank, (left, right), size = jax.lax.axis_index(ring.axis_name), window, ring.size

    def hop(shift: int) -> Hop | None:
        most = None if left is None else (left - shift) // size
        least = None if right is None else -((right + shift) // size)
        if shift == 0:
            return _hop(0, band) if (band := band_of(length, most, least)) else None
        if least == 0:
            # The rows before the first one see nothing.
            rows, band = slice(1, length + 1), band_of(length, most, 0) if most != -1 else None
        elif most == -1:
            # The last row sees nothing.
            rows, band = slice(0, length), band_of(length, 0, None if least is None else least + 1)
        else:
            # Aligned at the bottom right, row 0 of these stands before the first key.
            rows, band = slice(0, length + 1), Band(window=(most, None if least is None else -least))
        if band is None:
            return None
        has_passed, row = rank < shift, jnp.arange(length + 1)[None]

        def queries(x: Array) -> Array:
            empty = jnp.zeros_like(x[:, :1])
            return jnp.where(has_passed, jnp.concatenate([x, empty], 1), jnp.concatenate([empty, x], 1))[:, rows]

        def place(y: Array) -> list[Place]:
            around = [(0, 0), (rows.start, length + 1 - rows.stop), *[(0, 0)] * (y.ndim - 2)]
            y = jnp.pad(y, around, constant_values=-jnp.inf if y.ndim == 3 else 0)
            return [(ALL, ((jnp.where(has_passed, y[:, :-1], y[:, 1:]), None),))]

        counts = jnp.where(has_passed, row < length, row > 0)[:, rows]
        return Hop(shift, band, queries, _same, counts, place)

    own = hop(0)
    assert own is not None  # A token sees itself.
    hops = tuple(found for shift in range(1, size) if (found := hop(shift)) is not None)
    return Plan(own, (hops,), _rotation(ring), _same, _same)


def _by_distance(ring: Ring, window: Window, batch: int, length: int) -> Plan:
    """Masks over chunks that lie in a row, device after device, or there and back again (zigzag).

    At every hop each chunk of queries meets the keys of the chunk that is so many before it, or behind it. Chunks
    beyond the mask are never sent, and of the last one only the tokens that are in sight.
    """
    rank, (left, right), size = jax.lax.axis_index(ring.axis_name), window, ring.size
    slots = 2 if ring.layout is Layout.ZIGZAG else 1
    chunk, count = length // slots, size * slots
    # The chunks of a device stand one after the other in the batch.
    own = rank[None] if slots == 1 else jnp.repeat(jnp.stack([rank, count - 1 - rank]), batch)

    def hop(shift: int) -> Hop | None:
        most = None if left is None else left - shift * chunk
        band = band_of(chunk, most, None if right is None else -right - shift * chunk)
        if band is None or shift == 0:
            return band and _hop(shift, band)
        source = own - shift
        return _hop(shift, band, ((source >= 0) & (source < count))[:, None])

    def chain(step: int) -> tuple[Hop, ...]:
        hops = []
        for shift in range(step, step * count, step):
            found = hop(shift)
            if found is None:
                break
            hops.append(found)
        return tuple(hops)

    def move(x: Array, places: int) -> Array:
        parts = jnp.split(x, slots)
        return jnp.concatenate([_received(ring, parts, slot, places) for slot in range(slots)])

    def split(x: Array) -> Array:
        return x if slots == 1 else jnp.concatenate(jnp.split(x, slots, axis=1))

    def join(x: Array) -> Array:
        return x if slots == 1 else jnp.concatenate(jnp.split(x, slots), axis=1)

    first = hop(0)
    assert first is not None  # A token sees itself.
    return Plan(first, (chain(1), chain(-1)), move, split, join)


def _permuted(ring: Ring, x: Array, pairs: list[tuple[int, int]]) -> Array:
    """``x`` passed on; ``pairs`` count devices in the order of the ring's axes, JAX takes that of the mesh alone."""
    names = names_of(ring.axis_name)
    known = jax.sharding.get_abstract_mesh().axis_names
    # The axis of a `vmap` is in no mesh.
    order = sorted(names, key=known.index) if set(names) <= set(known) else list(names)
    ranks = np.arange(ring.size).reshape([axis_size(name) for name in order])
    ranks = ranks.transpose([order.index(name) for name in names]).reshape(-1).tolist()
    return jax.lax.ppermute(x, tuple(order), [(ranks[source], ranks[target]) for source, target in pairs])


def _received(ring: Ring, parts: list[Array], slot: int, places: int) -> Array:
    """The chunk that comes to one slot of this device when all move on; zeros where none does."""
    size, slots = ring.size, len(parts)
    count = size * slots

    def at(device: int, slot: int) -> int:
        return device if slot == 0 else count - 1 - device

    owner = {at(device, s): (device, s) for device in range(size) for s in range(slots)}
    total: Array | None = None
    for source_slot, part in enumerate(parts):
        sources = [(owner.get(at(device, slot) - places, (-1, -1)), device) for device in range(size)]
        pairs = [(source, device) for (source, s), device in sources if s == source_slot]
        if not pairs:
            continue
        if all(source == device for source, device in pairs):
            stays = jnp.isin(jax.lax.axis_index(ring.axis_name), jnp.array([device for _, device in pairs]))
            came = jnp.where(stays, part, jnp.zeros_like(part))
        else:
            came = _permuted(ring, part, pairs)
        # Of all that may come to a device one does, and the others are zeros.
        total = came if total is None else total + came
    return jnp.zeros_like(parts[slot]) if total is None else total
