"""The distance of one signature from another: exact, in the same bucket, near, or not comparable.

A *bucket* holds the signatures that become equal after rounding every scalable field up to a power of two. A
*neighbour* has every scalable field within a factor of ``MAX_RATIO``. In both, categorical fields are equal, no
resource exceeds what was tuned, and fields that are ordered with one another (``Field.order_with``) have one order.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from attn_tune.schema.signature import Field, FieldKind, Signature, Value

MAX_RATIO = 2
# The distance of a row that was tuned for more of a resource: behind a row for as much of it, before one that differs
# in anything else.
_OF_MORE = 2.0**-20


@dataclass(frozen=True, slots=True)
class Shape:
    """A signature split by the kinds of its fields, each in declared order, defaults filled in.

    ``order`` holds one number for each field with an ``order_with``: 1 if it is larger than that one, 0 if both are
    equal, -1 if it is smaller.

    Attributes:
      categorical: the version of the contract, then the values that must be equal.
      resource: the values that must not exceed what was tuned.
      scalable: the values that may be near.
    """

    categorical: tuple[Value, ...]
    resource: tuple[Value, ...]
    scalable: tuple[Value, ...]
    order: tuple[int, ...] = ()


def shape_of(signature: Signature, fields: Iterable[Field]) -> Shape:
    """The shape of ``signature``."""
    fields = tuple(fields)
    values = {field.name: field.default for field in fields} | signature.values
    by_kind: dict[FieldKind, list[Value]] = {kind: [] for kind in FieldKind}
    for field in fields:
        by_kind[field.kind].append(values[field.name])
    return Shape(
        (signature.version, *by_kind[FieldKind.CATEGORICAL]),
        tuple(by_kind[FieldKind.RESOURCE]),
        tuple(by_kind[FieldKind.SCALABLE]),
        tuple(_order(values[f.name], values[f.order_with]) for f in fields if f.order_with),
    )


def _order(a: Value, b: Value) -> int:
    if not isinstance(a, int) or not isinstance(b, int):
        return 0
    return (a > b) - (a < b)


def same_bucket(asked: Shape, tuned: Shape) -> bool:
    """Whether the scalable fields agree after rounding up to powers of two, and their order is one."""
    return asked.order == tuned.order and all(map(same_power, asked.scalable, tuned.scalable))


def distance(asked: Shape, tuned: Shape) -> float | None:
    """Sum of ``|log2(asked / tuned)|`` over the scalable fields; None past a bound, or in another order.

    A resource of which more was tuned adds a millionth.
    ``None`` in a field ("no window") equals only itself, and so does 0.
    """
    if asked.categorical != tuned.categorical or asked.order != tuned.order:
        return None
    total = 0.0
    for kind, need, had in (
        (FieldKind.RESOURCE, asked.resource, tuned.resource),
        (FieldKind.SCALABLE, asked.scalable, tuned.scalable),
    ):
        for a, b in zip(need, had, strict=True):
            away = measure(kind, a, b)
            if away is None:
                return None
            total += away
    return total


def measure(kind: FieldKind, asked: Value, tuned: Value) -> float | None:
    """The distance of one field: ``|log2(asked / tuned)|`` of a scalable one; None past its bound."""
    if asked == tuned:
        return 0.0
    if not isinstance(asked, int) or not isinstance(tuned, int):
        return None
    if kind is FieldKind.RESOURCE:
        return _OF_MORE if asked < tuned else None
    if kind is FieldKind.CATEGORICAL or asked <= 0 or tuned <= 0:
        return None
    if asked > MAX_RATIO * tuned or tuned > MAX_RATIO * asked:
        return None
    return math.log2(max(asked, tuned) / min(asked, tuned))


def same_power(a: Value, b: Value) -> bool:
    """Whether two counts agree after rounding up to powers of two; anything else, whether it is equal."""
    if isinstance(a, int) and isinstance(b, int) and a > 0 and b > 0:
        return (a - 1).bit_length() == (b - 1).bit_length()
    return a == b
