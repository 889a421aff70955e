"""Read from a compiler's error the resource that ran out, how much is needed and how much there is."""

import re
from typing import Any

from attn_tune.schema.trial import Shortage

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = r"([0-9.]+)\s*([KMGT]?)i?B?"
_SCOPED = re.compile(rf"Scoped allocation with size {_SIZE} and limit {_SIZE}")
_USED = re.compile(rf"Used {_SIZE} of {_SIZE} (\w+)")
_SPACE = re.compile(r"memory space (\w+)")


def shortage_of(error: BaseException) -> Shortage | None:
    """The numbers of an error about something that does not fit; None for any other, or one without numbers.

    They are bytes, except in errors that have a unit of their own: columns of tensor memory, registers, threads.
    """
    known = _typed(error)
    if known is not None:
        return known
    text = str(error)
    space = _SPACE.search(text)
    if found := _SCOPED.search(text):
        needed, limit = _bytes(found[1], found[2]), _bytes(found[3], found[4])
        return Shortage(resource=space[1] if space else "vmem", needed=needed, limit=limit)
    if found := _USED.search(text):
        needed, limit = _bytes(found[1], found[2]), _bytes(found[3], found[4])
        return Shortage(resource=found[5], needed=needed, limit=limit)
    return None


def _typed(error: Any) -> Shortage | None:
    resource, needed, limit = (getattr(error, n, None) for n in ("resource", "needed", "limit"))
    if isinstance(resource, str) and isinstance(needed, int) and isinstance(limit, int):
        return Shortage(resource=resource, needed=needed, limit=limit)
    return None


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])
