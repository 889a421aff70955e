"""Times as text: ISO 8601 in UTC with microseconds, so that they read well and sort as they are."""

import time
from datetime import datetime, timedelta

_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)


def now_us() -> int:
    """Unix time in microseconds."""
    return time.time_ns() // 1000


def time_text(us: int) -> str:
    """The text of a Unix time in microseconds: ``2026-11-23T11:07:58.000000Z``.

    Raises:
      OverflowError: the year is beyond 9999.
    """
    return (_EPOCH + us * _MICROSECOND).isoformat(timespec="microseconds") + "Z"


def time_us(text: str) -> int:
    """The inverse of ``time_text``.

    Raises:
      ValueError: ``text`` is no time.
    """
    if not text.endswith("Z"):
        raise ValueError(f"{text!r} is no time in UTC")
    return (datetime.fromisoformat(text[:-1]) - _EPOCH) // _MICROSECOND
