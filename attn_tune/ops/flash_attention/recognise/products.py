"""Finds attention in a graph: a product, a softmax along one of its axes, a product that sums that axis away.

The backward of such a softmax is found by its own shape: a product whose elements are multiplied, summed along one
axis, and then summed along both by two more products. It takes the signature of the forward whose weights it reads;
where these come out of a loop, that of the forward of the same sizes.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from attn_tune.ops.flash_attention.recognise.axes import Cone, follow, root
from attn_tune.ops.flash_attention.recognise.sizes import Sizes, read_sizes
from attn_tune.ops.flash_attention.recognise.traits import Traits, UnreadableError, read_traits
from attn_tune.ops.program_graph import Graph, Value


@dataclass(frozen=True, kw_only=True, slots=True)
class Softmax:
    """One attention that is written out.

    Attributes:
      sizes: its lengths, heads and dtype.
      traits: masks, bias and the like.
      forwards: how often one run of the program computes its output.
      backwards: how often one run of the program computes its gradients.
      reason: why it has no signature, or nothing.
    """

    sizes: Sizes
    traits: Traits
    forwards: int = 0
    backwards: int = 0
    reason: str = ""


@dataclass(slots=True)
class _Forward:
    cone: Cone
    summed: frozenset[int]
    end: tuple[Value, int] | None = None
    backwards: int = 0


def find_attention(graph: Graph) -> list[Softmax]:
    """Finds all attention that is written out in products, in the order of the program."""
    uses = graph.uses()
    order = {value: i for i, value in enumerate(graph.values)}
    cones = [follow(value, uses, order) for value in graph.values if value.kind == "dot"]
    forwards = [f for cone in cones if (f := _forward(cone)) is not None]
    by_product = {f.cone.product: f for f in forwards}
    # A product that the gradient of a softmax starts from, and what it leads to.
    linked: dict[Value, _Forward] = {}
    orphans: list[Cone] = []
    for cone in cones:
        if cone.product in by_product:
            continue
        forward = _origin(cone, forwards)
        if forward is not None:
            linked[cone.product] = forward
            forward.backwards = max(forward.backwards, cone.product.runs)
        elif _is_backward(cone):
            orphans.append(cone)
    gradients = [cone for cone in cones if cone.product in linked]
    for forward in forwards:
        forward.end = _end(forward, gradients)
    # A program that needs gradients alone may leave the output itself out; a router's softmax has no batch axes.
    shown = [f for f in forwards if f.end or (f.backwards and _batch_atoms(f.cone))]
    found = [_read(f) for f in shown]
    return list(_with_orphans([s for s in found if s is not None], orphans))


def _forward(cone: Cone) -> _Forward | None:
    """The cone as logits and their softmax: some axis is summed after an ``exp``."""
    # The first such sum: those that follow may belong to gradients.
    sums = (t.exp_summed for t in cone.tracks.values() if t.exp_summed)
    first = next(sums, None)
    return _Forward(cone, first) if first else None


def _origin(cone: Cone, forwards: list[_Forward]) -> _Forward | None:
    """The forward whose weights the gradient in ``cone`` is multiplied by, and which it then leaves by a product."""
    for forward in forwards:
        for _, operand in _operands(cone):
            mine, theirs = cone.tracks[operand], forward.cone.tracks.get(operand)
            if theirs is not None and "exp" in theirs.steps and "exp" not in mine.steps:
                return forward
    return None


def _operands(cone: Cone) -> Iterator[tuple[Value, Value]]:
    for product, place in cone.ends:
        yield product, product.inputs[place]


def _end(forward: _Forward, gradients: list[Cone]) -> tuple[Value, int] | None:
    """The product of weights and values: it sums the softmax's axis away, and nothing but the weights is in it."""
    cone = forward.cone
    batch = _batch_atoms(cone)
    for product, place in cone.ends:
        weights = product.inputs[place]
        track = cone.tracks[weights]
        if "exp" not in track.steps or any(
            weights in other.tracks and "exp" not in other.tracks[weights].steps for other in gradients
        ):
            continue
        if _contracted(cone, product, place) != _large(cone, forward.summed):
            continue
        if _shared(cone, product, place) != _large(cone, batch):
            continue
        if not batch and root(product.inputs[1 - place]) in map(root, cone.product.inputs):
            # The gradient of a cross entropy over a vocabulary: one matrix on both sides.
            continue
        return product, place
    return None


def _batch_atoms(cone: Cone) -> frozenset[int]:
    return frozenset(range(len(cone.product.attributes["batch"][0])))


def _large(cone: Cone, atoms: frozenset[int]) -> frozenset[int]:
    """Drops atoms of size 1, which cannot be followed."""
    return frozenset(a for a in atoms if cone.sizes[a] > 1)


def _contracted(cone: Cone, product: Value, place: int) -> frozenset[int]:
    """The atoms that a later product sums away."""
    return _atoms(cone, product, place, product.attributes["contract"][place])


def _shared(cone: Cone, product: Value, place: int) -> frozenset[int]:
    """The atoms that are batch axes of a later product."""
    return _atoms(cone, product, place, product.attributes["batch"][place])


def _atoms(cone: Cone, product: Value, place: int, axes: tuple[int, ...]) -> frozenset[int]:
    track = cone.tracks[product.inputs[place]]
    return _large(cone, frozenset(atom for axis in axes for atom in track.axes[axis]))


def _read(forward: _Forward) -> Softmax | None:
    cone = forward.cone
    runs = forward.end[0].runs if forward.end else 0
    value = forward.end[0].inputs[1 - forward.end[1]] if forward.end else None
    sizes = read_sizes(cone, forward.summed, value, forward.end)
    if sizes is None:
        return None
    traits, reason = Traits(), ""
    try:
        traits = read_traits(cone, forward.end, sizes)
    except UnreadableError as error:
        reason = str(error)
    return Softmax(sizes=sizes, traits=traits, forwards=runs, backwards=forward.backwards, reason=reason)


def _is_backward(cone: Cone) -> bool:
    """Whether the cone has the shape of a softmax's gradient, with batch axes: an axis is summed and one end sums it
    away, another end sums away what is on its other side."""
    if not _batch_atoms(cone):
        return False
    return _backward_axes(cone) is not None


def _backward_axes(cone: Cone) -> tuple[frozenset[int], tuple[Value, int]] | None:
    """The atoms of ``S``, and the product that makes the gradient of the queries."""
    if any("exp" in t.steps for t in cone.tracks.values()):
        return None
    batch = _large(cone, _batch_atoms(cone))
    free = _large(cone, frozenset(cone.sizes)) - batch
    for product, place in cone.ends:
        track = cone.tracks[product.inputs[place]]
        gone = _contracted(cone, product, place)
        if not gone or gone != _large(cone, track.summed) - batch or "multiply" not in track.steps:
            continue
        for other, at in cone.ends:
            if _contracted(cone, other, at) == free - gone and _shared(cone, other, at) == batch:
                return gone, (product, place)
    return None


def _with_orphans(found: list[Softmax], orphans: list[Cone]) -> Iterator[Softmax]:
    """Gives gradients whose weights come out of a loop to the forwards of their sizes."""
    counts = [s.backwards for s in found]
    for cone in orphans:
        axes = _backward_axes(cone)
        assert axes is not None
        sizes = read_sizes(cone, axes[0], None, None, gradient=axes[1])
        if sizes is None:
            continue
        same = [i for i, s in enumerate(found) if s.sizes.alike(sizes) and not s.backwards]
        for i in same:
            # Layers of equal sizes and different masks share what there is.
            counts[i] += max(1, cone.product.runs // len(same)) if same else 0
    for softmax, count in zip(found, counts, strict=True):
        yield dataclasses.replace(softmax, backwards=count)
