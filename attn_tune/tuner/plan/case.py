"""`GridPoint`, a named problem, and `Case`, one problem in one direction."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attn_tune.ops.contract import Op
from attn_tune.ops.registry import directions_of, get_op
from attn_tune.schema.signature import Signature


@dataclass(frozen=True, kw_only=True, slots=True)
class GridPoint:
    """One named problem of a grid.

    Attributes:
      name: unique within its grid, such as ``llama3-8b/4x4k``.
      op: the name of the signature's op.
      signature: the problem.
      source: the public address, or the program, that the figures were taken from.
      directions: those that are of use; empty is all.
      calls: how often one run of the program calls it; 0 is unknown.
    """

    name: str
    op: str
    signature: Signature
    source: str = ""
    directions: tuple[str, ...] = ()
    calls: int = 0

    @property
    def ways(self) -> tuple[str, ...]:
        """The directions that are of use: its own, or all that the problem has."""
        return self.directions or directions_of(self.signature.text)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One problem in one direction.

    Attributes:
      signature: the problem.
      direction: one of its op's.
      names: the grid points that share it.
    """

    signature: Signature
    direction: str
    names: tuple[str, ...] = ()

    @property
    def op(self) -> Op:
        """The op of the signature."""
        return get_op(self.signature.op)

    @property
    def label(self) -> str:
        """The grid point's name and the direction, for people."""
        return f"{'+'.join(self.names) or self.signature.text} {self.direction}"


def make_cases(points: Iterable[GridPoint], directions: Sequence[str] = ()) -> tuple[Case, ...]:
    """The distinct cases of ``points``, in grid order and the order of their op's directions.

    Points of one signature share a case. Without ``directions`` every op has its own; those that an op does not have,
    or a point has no use for, are left out.
    """
    names: dict[Signature, list[str]] = {}
    wanted: dict[Signature, set[str]] = {}
    for point in points:
        of_point = point.ways
        wanted.setdefault(point.signature, set()).update(of_point)
        seen = names.setdefault(point.signature, [])
        if point.name not in seen:
            seen.append(point.name)
    return tuple(
        Case(signature=signature, direction=direction, names=tuple(labels))
        for signature, labels in names.items()
        for direction in get_op(signature.op).directions
        if direction in wanted[signature] and (not directions or direction in directions)
    )


def merge_points(points: Iterable[GridPoint]) -> tuple[GridPoint, ...]:
    """One point for each signature, in order of first appearance; names and sources of equal shapes are joined."""
    found: dict[Signature, GridPoint] = {}
    for point in points:
        if (known := found.get(point.signature)) is not None:
            point = GridPoint(
                name=_join(known.name, point.name),
                op=point.op,
                signature=point.signature,
                source=_join(known.source, point.source),
                directions=_union(get_op(point.op), known.directions, point.directions),
                calls=known.calls + point.calls,
            )
        found[point.signature] = point
    return tuple(found.values())


def _join(a: str, b: str) -> str:
    return "+".join(dict.fromkeys((*a.split("+"), *b.split("+"))))


def _union(op: Op, a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    """Directions of two points of one problem of ``op``; an empty one is all."""
    return tuple(d for d in op.directions if d in a or d in b) if a and b else ()
