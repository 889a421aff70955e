"""The mode of a call, read off the shape of its query: training, or decoding."""

import enum
from typing import Any

from attn_tune.schema.errors import UsageError, shown


class Mode(enum.StrEnum):
    """``decode`` is one new token a sequence; everything longer is ``train`` (training and prefill)."""

    TRAIN = "train"
    DECODE = "decode"


def mode_of(query: Any, *, layout: str = "BTNH") -> Mode:
    """The mode of a call with this query (anything with a ``shape``); ``layout`` says which axis is ``T``.

    Raises:
      UsageError: ``layout`` is not ``"BTNH"`` or ``"BNTH"``, or the query is not 4-D.
    """
    if layout not in ("BTNH", "BNTH"):
        raise UsageError(f"layout must be 'BTNH' or 'BNTH', got {shown(layout)}")
    if len(query.shape) != 4:
        raise UsageError(f"query must have the 4 axes {layout}, got shape {tuple(query.shape)}")
    return Mode.DECODE if query.shape[layout.index("T")] == 1 else Mode.TRAIN
