"""What becomes of a lookup that nothing stored answers, and the counts of all lookups."""

import enum
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from attn_tune.runtime.answer import Answer, Rung
from attn_tune.schema.errors import NoDataError, UsageError

ON_MISS = "ATTN_TUNE_ON_MISS"
# Distinct missed keys that are remembered; the rest is only counted.
MAX_KEYS = 4096

_log = logging.getLogger("attn_tune")
_lock = threading.Lock()


class MissMode(enum.StrEnum):
    """``heuristic``: answer with the untuned config. ``warn``: and say so once a key. ``strict``: raise."""

    HEURISTIC = "heuristic"
    WARN = "warn"
    STRICT = "strict"


@dataclass(frozen=True, kw_only=True, slots=True)
class Miss:
    """A question that nothing stored answered, and how often it was asked."""

    op: str
    direction: str
    signature: str
    device: str
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Stats:
    """Lookups by rung, and the distinct misses, most asked first.

    Counts are kept without a lock on the fast path: threads that look up at the very same moment may lose one.
    """

    lookups: dict[Rung, int]
    misses: tuple[Miss, ...]
    forgotten_misses: int


type _Key = tuple[str, str, str, str]

_mode: MissMode | None = None
_lookups: dict[Rung, int] = dict.fromkeys(Rung, 0)
_misses: dict[_Key, int] = {}
_forgotten = 0


def set_miss_mode(mode: str) -> None:
    """Says what a miss does from now on, in place of the environment variable ``ATTN_TUNE_ON_MISS``.

    Raises:
      UsageError: unknown mode.
    """
    global _mode
    _mode = _parse(mode)


def miss_mode() -> MissMode:
    """The mode in force."""
    global _mode
    if _mode is None:
        _mode = _parse(os.environ.get(ON_MISS) or MissMode.HEURISTIC)
    return _mode


def count(answer: Answer, nearest: Callable[[], str]) -> None:
    """Counts one lookup and, on a miss, does what the mode says. ``nearest`` says what came nearest.

    Raises:
      NoDataError: a miss in strict mode.
    """
    _lookups[answer.rung] += 1
    if answer.rung is Rung.HEURISTIC:
        _miss(answer, nearest)


def stats() -> Stats:
    """The counts since the start of the process or the last ``reset_stats``."""
    with _lock:
        missed = sorted(_misses.items(), key=lambda item: (-item[1], item[0]))
        return Stats(
            lookups=dict(_lookups),
            misses=tuple(
                Miss(op=op, direction=direction, signature=signature, device=device, count=n)
                for (op, direction, signature, device), n in missed
            ),
            forgotten_misses=_forgotten,
        )


def reset_stats() -> None:
    """Starts counting anew."""
    global _forgotten
    with _lock:
        _lookups.update(dict.fromkeys(Rung, 0))
        _misses.clear()
        _forgotten = 0


def _miss(answer: Answer, nearest: Callable[[], str]) -> None:
    global _forgotten
    key = (answer.op, answer.direction, answer.signature, answer.device)
    with _lock:
        is_new = key not in _misses
        if not is_new or len(_misses) < MAX_KEYS:
            _misses[key] = _misses.get(key, 0) + 1
        else:
            _forgotten += 1
            is_new = False
    mode = miss_mode()
    if mode is MissMode.HEURISTIC or (mode is MissMode.WARN and not is_new):
        return
    text = f"no tuned config for {answer.op}.{answer.direction} {answer.signature} on {answer.device}: {nearest()}"
    if mode is MissMode.STRICT:
        raise NoDataError(f"{text}; sweep it, or set {ON_MISS}=heuristic")
    _log.warning("%s; the heuristic answers", text)


def _parse(mode: str) -> MissMode:
    try:
        return MissMode(mode)
    except ValueError:
        raise UsageError(f"miss mode must be one of {', '.join(MissMode)}, got {mode!r}") from None
