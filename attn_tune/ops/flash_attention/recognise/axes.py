"""Follows the axes of a product through what happens to it, up to the next product.

An axis is a tuple of *atoms*: the axes of the product, or what they are merged into. ``reshape`` may merge, split at
atoms, and add or drop axes of size 1; anything else loses the thread, and the value is not followed.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from attn_tune.ops.program_graph import ARRANGING, ELEMENTWISE, Value

type Axis = tuple[int, ...]

# Past this a product is not the logits of an attention but the trunk of a model.
MAX_VALUES = 4096


@dataclass(frozen=True, slots=True)
class Track:
    """The places of a product's atoms in a later value.

    Attributes:
      axes: the atoms of each axis; an empty one was broadcast.
      steps: kinds of the operations on the way (``exp``, ``tanh``, ...), by this and all its inputs.
      maxed, summed: atoms that were reduced away on the way.
      exp_summed: of these, by a sum after an ``exp``.
    """

    axes: tuple[Axis, ...]
    steps: frozenset[str] = frozenset()
    maxed: frozenset[int] = frozenset()
    summed: frozenset[int] = frozenset()
    exp_summed: frozenset[int] = frozenset()


@dataclass(slots=True)
class Cone:
    """The values that follow from one product.

    Attributes:
      product: the first value.
      sizes: of its atoms.
      tracks: every value that still has its axes.
      ends: the products that read one of these, with the operand's place.
    """

    product: Value
    sizes: Mapping[int, int]
    tracks: dict[Value, Track] = field(default_factory=dict[Value, Track])
    ends: list[tuple[Value, int]] = field(default_factory=list[tuple[Value, int]])


def follow(product: Value, uses: Mapping[Value, list[Value]], order: Mapping[Value, int]) -> Cone:
    """Builds the cone of ``product``: atoms are numbered like its axes."""
    import heapq

    sizes = dict(enumerate(product.shape))
    cone = Cone(product, sizes, {product: Track(tuple((i,) for i in range(len(product.shape))))})
    queue = [(order[user], user) for user in uses.get(product, ())]
    # In the order of computation, so that every followed input is there when a value is looked at.
    heap = [(number, id(user), user) for number, user in queue]
    heapq.heapify(heap)
    seen: set[Value] = set()
    while heap and len(seen) < MAX_VALUES:
        _, _, value = heapq.heappop(heap)
        if value in seen:
            continue
        seen.add(value)
        if value.kind == "dot":
            cone.ends += [(value, i) for i, v in enumerate(value.inputs) if v in cone.tracks]
            continue
        track = _step(value, cone)
        if track is None:
            continue
        cone.tracks[value] = track
        for user in uses.get(value, ()):
            heapq.heappush(heap, (order[user], id(user), user))
    return cone


def _step(value: Value, cone: Cone) -> Track | None:
    known = [(v, cone.tracks[v]) for v in value.inputs if v in cone.tracks]
    first_value, first = known[0]
    if value.kind == "transpose":
        dims: list[int] = value.attributes["dims"]
        return dataclasses.replace(first, axes=tuple(first.axes[d] for d in dims))
    if value.kind == "reshape":
        regrouped = _regroup(first_value.shape, first.axes, value.shape, cone.sizes)
        return None if regrouped is None else dataclasses.replace(first, axes=regrouped)
    if value.kind == "broadcast":
        axes: list[Axis] = [()] * len(value.shape)
        for axis, dim in zip(first.axes, value.attributes["dims"], strict=True):
            axes[dim] = axis
        return dataclasses.replace(first, axes=tuple(axes))
    if value.kind in ("reduce_max", "reduce_sum"):
        return _reduced(value, first)
    if value.kind == "concatenate":
        # Attention sinks: one more column of logits, cut off again after the softmax.
        axis = value.attributes["dims"][0]
        if len(value.inputs) != 2 or value.shape[axis] != first_value.shape[axis] + 1:
            return None
        return dataclasses.replace(first, steps=first.steps | {"sinks"})
    if value.kind == "slice":
        grown = [a - b for a, b in zip(first_value.shape, value.shape, strict=True) if a != b]
        return first if "sinks" in first.steps and grown == [1] else None
    if value.kind in ELEMENTWISE:
        return _joined(value, known)
    return None


def _reduced(value: Value, track: Track) -> Track:
    dims: list[int] = value.attributes["dims"]
    gone = frozenset(atom for d in dims for atom in track.axes[d])
    kept = tuple(axis for i, axis in enumerate(track.axes) if i not in dims)
    if value.kind == "reduce_max":
        return dataclasses.replace(track, axes=kept, maxed=track.maxed | gone)
    by_exp = gone if "exp" in track.steps else frozenset[int]()
    return dataclasses.replace(track, axes=kept, summed=track.summed | gone, exp_summed=track.exp_summed | by_exp)


def _joined(value: Value, known: list[tuple[Value, Track]]) -> Track | None:
    """An elementwise value: its inputs must agree about every axis that they know."""
    axes: list[Axis] = [()] * len(value.shape)
    steps = {value.kind} - {"copy", "convert"}
    if value.kind == "exp2":
        steps = {"exp"}
    maxed = summed = exp_summed = frozenset[int]()
    for operand, track in known:
        steps |= track.steps
        maxed, summed, exp_summed = (
            maxed | track.maxed,
            summed | track.summed,
            exp_summed | track.exp_summed,
        )
        for i, axis in enumerate(track.axes):
            if operand.shape[i] != value.shape[i]:
                continue
            if axis and axes[i] and axis != axes[i]:
                return None
            axes[i] = axes[i] or axis
    return Track(tuple(axes), frozenset(steps), maxed, summed, exp_summed)


def _regroup(
    before: tuple[int, ...],
    axes: tuple[Axis, ...],
    after: tuple[int, ...],
    sizes: Mapping[int, int],
) -> tuple[Axis, ...] | None:
    """The axes after a reshape; None if one would be cut inside an atom. An unknown axis must stay whole."""
    pieces: list[tuple[int, Axis]] = []
    for size, axis in zip(before, axes, strict=True):
        atoms = [(sizes[a], (a,)) for a in axis]
        if not atoms or _product(n for n, _ in atoms) != size:
            atoms = [(size, axis)]
        pieces += [piece for piece in atoms if piece[0] != 1]
    found: list[Axis] = []
    for size in after:
        total, axis = 1, ()
        while total < size and pieces:
            piece, atoms = pieces.pop(0)
            total, axis = total * piece, (*axis, *atoms)
        if total != size:
            return None
        found.append(axis)
    return None if pieces else tuple(found)


def _product(numbers: Iterator[int]) -> int:
    total = 1
    for number in numbers:
        total *= number
    return total


def root(value: Value) -> Value:
    """The value that ``value`` is an arrangement, a copy or a conversion of."""
    while value.kind in ARRANGING or value.kind in ("convert", "copy"):
        value = value.inputs[0]
    return value
