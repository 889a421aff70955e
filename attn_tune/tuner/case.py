"""What is tuned: grid points, and the cases (one problem in one direction) that they become."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attn_tune.kernels.registry import get_op
from attn_tune.kernels.spec import Op
from attn_tune.schema.signature import Signature


@dataclass(frozen=True, kw_only=True, slots=True)
class GridPoint:
    """One named problem of a grid. ``source`` is the public address the figures were taken from."""

    name: str
    op: str
    signature: Signature
    source: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One problem in one direction. ``names`` are the grid points that share it."""

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


def make_cases(points: Iterable[GridPoint], directions: Sequence[str]) -> tuple[Case, ...]:
    """The distinct cases of ``points``, in grid order; points of one signature share a case.

    Directions that an op does not have are left out.
    """
    names: dict[Signature, list[str]] = {}
    for point in points:
        seen = names.setdefault(point.signature, [])
        if point.name not in seen:
            seen.append(point.name)
    return tuple(
        Case(signature=signature, direction=direction, names=tuple(labels))
        for signature, labels in names.items()
        for direction in directions
        if direction in get_op(signature.op).directions
    )
