"""The distance between two cases, for borrowing what was measured there."""

import math
from collections.abc import Iterable

from attn_tune.schema.signature import Field, FieldKind, Signature, Value
from attn_tune.tuner.plan.strategies.space import PastCase, Space

# In doublings: a categorical field that differs says more than any length, a device of the family less than most.
_MISMATCH = 4.0
_ABSENT = 2.0
_OTHER_DEVICE = 1.0


def distance(a: Signature, b: Signature, fields: Iterable[Field]) -> float:
    """Doublings between two signatures of one op: over the scalable fields, and a penalty for each other mismatch."""
    left, right = a.values, b.values
    return sum(
        _steps(field, left.get(field.name, field.default), right.get(field.name, field.default)) for field in fields
    )


def _steps(field: Field, a: Value, b: Value) -> float:
    if a == b:
        return 0.0
    if field.kind is FieldKind.CATEGORICAL:
        return _MISMATCH
    if not isinstance(a, int) or not isinstance(b, int):
        return _ABSENT
    return abs(math.log2(max(a, 1) / max(b, 1)))


def nearest(space: Space) -> list[tuple[float, PastCase]]:
    """``(distance, case)`` of every case of the prior in which a config was right, the nearest first."""
    found = [
        (_distance(space, case), case)
        for case in space.prior.cases
        if math.isfinite(case.best_ns) and (space.signature is None or case.signature.op == space.signature.op)
    ]
    return sorted(found, key=lambda item: (item[0], item[1].signature.text, item[1].best_ns))


def _distance(space: Space, case: PastCase) -> float:
    far = 0.0 if case.same_device else _OTHER_DEVICE
    if space.signature is None:
        return far
    return far + distance(space.signature, case.signature, space.fields)


def weight(far: float) -> float:
    """The weight of a case that is ``far`` doublings away."""
    return 1.0 / (1.0 + far) ** 2
