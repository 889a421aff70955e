"""Configs and shapes as rows of numbers, for a regression."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attn_tune.schema.signature import Field, Signature
from attn_tune.tuner.plan.strategies.space import Candidate

if TYPE_CHECKING:
    import numpy as np


def knob_rows(candidates: Sequence[Candidate]) -> "np.ndarray":
    """One row a config: log2 of each knob that is a number, and one column a value of each that is a word."""
    import numpy as np

    flat = [_flat(candidate) for candidate in candidates]
    names = sorted({name for row in flat for name in row})
    columns = []
    for name in names:
        values: list[Any] = [row.get(name) for row in flat]
        if all(isinstance(value, (int, float)) for value in values):
            columns.append([_log2(value) for value in values])
        else:
            columns += [[float(str(v) == word) for v in values] for word in _words(values)]
    return np.array(columns, dtype=float).T.reshape(len(flat), len(columns))


def with_products(rows: "np.ndarray") -> "np.ndarray":
    """``rows`` with the sum and the difference of each two columns: in log2, products and quotients of knobs.

    Those are what a tree cannot see by itself: the area of a tile, the rows of a warp, the bytes of a pipeline.
    """
    import numpy as np

    varying = [column for column in rows.T if len(set(column)) > 1]
    pairs = list(itertools.combinations(varying, 2))
    more = [*(a + b for a, b in pairs), *(a - b for a, b in pairs)]
    return np.column_stack([rows, *more])


def shape_rows(signatures: Sequence[Signature], fields: Iterable[Field]) -> "np.ndarray":
    """One row a signature: log2 of each integer field, -1 for an absent one; a word becomes one column a value."""
    import numpy as np

    columns = []
    values = [signature.values for signature in signatures]
    for field in fields:
        column = [row.get(field.name, field.default) for row in values]
        if field.is_int:
            columns.append([_log2(v) if isinstance(v, int) else -1.0 for v in column])
        else:
            columns += [[float(str(v) == word) for v in column] for word in _words(column)]
    return np.array(columns, dtype=float).T.reshape(len(values), len(columns))


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _words(values: Iterable[Any]) -> list[str]:
    return sorted({str(value) for value in values})


def _log2(value: float) -> float:
    return math.log2(1 + value) if value < 1 else math.log2(value) + 1
