"""Configs and shapes as rows of numbers, for a regression."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attn_tune.schema.signature import Field, Signature
from attn_tune.tuner.strategies.space import Candidate

if TYPE_CHECKING:
    import numpy as np


def config_rows(candidates: Sequence[Candidate]) -> "np.ndarray":
    """One row a config: log2 of each knob, and log2 of each product and quotient of two.

    Those are what a tree cannot see by itself: the area of a tile, the rows of a warp, the bytes of a pipeline.
    A knob that is a word becomes one column a value.
    """
    import numpy as np

    flat = [_flat(candidate) for candidate in candidates]
    names = sorted({name for row in flat for name in row})
    numbers = [n for n in names if all(_is_number(row.get(n)) for row in flat)]
    columns = [[_log2(row[name]) for row in flat] for name in numbers]
    varying = [column for column in columns if len(set(column)) > 1]
    for left, right in itertools.combinations(varying, 2):
        columns.append([a + b for a, b in zip(left, right, strict=True)])
        columns.append([a - b for a, b in zip(left, right, strict=True)])
    for name in (n for n in names if n not in numbers):
        for word in sorted({str(row.get(name)) for row in flat}):
            columns.append([float(str(row.get(name)) == word) for row in flat])
    return np.array(columns, dtype=float).T.reshape(len(flat), len(columns))


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
            for word in sorted({str(v) for v in column}):
                columns.append([float(str(v) == word) for v in column])
    return np.array(columns, dtype=float).T.reshape(len(values), len(columns))


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _log2(value: float) -> float:
    return math.log2(1 + value) if value < 1 else math.log2(value) + 1
