"""Misses, lookups that nothing stored answers: their effect, and the counts of all lookups."""

import dataclasses
import enum
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attn_tune.runtime.lookup.answer import Answer, Rung
from attn_tune.schema.errors import NoDataError, UsageError, warn
from attn_tune.schema.logs import log

ON_MISS = "ATTN_TUNE_ON_MISS"
# Distinct missed keys that are remembered; the rest is only counted.
MAX_KEYS = 4096
# Of the text of ``Stats``.
SHOWN_MISSES = 10

_lock = threading.Lock()


class MissMode(enum.StrEnum):
    """The effect of a miss.

    ``untuned``: the untuned config answers. ``warn``: it does, with one ``AttnTuneWarning`` a question. ``record``:
    it does, and the miss is written to the spool; ``record:PATH`` names the spool's folder. ``strict``: an error.
    """

    UNTUNED = "untuned"
    WARN = "warn"
    RECORD = "record"
    STRICT = "strict"


@dataclass(frozen=True, kw_only=True, slots=True)
class Miss:
    """A question that nothing stored answered, and how often it was asked.

    Attributes:
      op, direction, signature: the question.
      device: the device that was asked for.
      count: the number of times.
    """

    op: str
    direction: str
    signature: str
    device: str
    count: int


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Stats:
    """Lookups by rung, and the distinct misses, most asked first.

    Counts are kept without a lock on the fast path: threads that look up at the very same moment may lose one.
    ``unrecorded_misses`` could not be written to the spool: a full disk, a read-only folder.

    Attributes:
      lookups: the number of answers by rung.
      misses: the distinct misses.
      forgotten_misses: the number of misses beyond those that are kept.
    """

    lookups: dict[Rung, int]
    misses: tuple[Miss, ...]
    forgotten_misses: int
    unrecorded_misses: int = 0

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {rung}" for rung, count in self.lookups.items() if count)
        lines = [f"lookups: {counts or 'none'}", f"distinct misses: {len(self.misses)}"]
        lines += [
            f"{miss.count:>6} x {miss.op}.{miss.direction} {miss.signature} on {miss.device}"
            for miss in self.misses[:SHOWN_MISSES]
        ]
        if len(self.misses) > SHOWN_MISSES:
            lines.append(f"       and {len(self.misses) - SHOWN_MISSES} more")
        if self.forgotten_misses:
            lines.append(f"misses beyond the first {MAX_KEYS}: {self.forgotten_misses}")
        if self.unrecorded_misses:
            lines.append(f"misses that could not be recorded: {self.unrecorded_misses}")
        return "\n".join(lines)

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return dataclasses.asdict(self) | {"lookups": {str(k): n for k, n in self.lookups.items()}}


type _Key = tuple[str, str, str, str]

# Of the environment, None until it is read; and of the program, which goes first.
_mode: MissMode | None = None
_program_mode: MissMode | None = None
# The folder that the program named; the environment's, or the user's, without one.
_folder = ""
_lookups: dict[Rung, int] = dict.fromkeys(Rung, 0)
_misses: dict[_Key, int] = {}
_forgotten = 0
_unrecorded = 0
_process = ""


def set_miss_mode(mode: str) -> None:
    """Set the effect of a miss, in place of the environment variable ``ATTN_TUNE_ON_MISS``, over reloads too.

    Args:
      mode: a ``MissMode``, or ``"record:PATH"``.

    Raises:
      UsageError: unknown mode.
    """
    global _program_mode, _folder
    _program_mode = _parse(mode, "miss mode")
    _folder = mode.partition(":")[2]


def miss_mode() -> MissMode:
    """The active mode.

    Raises:
      UsageError: ``ATTN_TUNE_ON_MISS``, when it is first read, names no mode.
    """
    if _program_mode is None and _mode is None:
        take_mode(mode_of(os.environ))
    return _program_mode or _mode or MissMode.UNTUNED


def mode_of(environ: Mapping[str, str]) -> MissMode:
    """The mode that ``environ`` asks for.

    Raises:
      UsageError: unknown mode.
    """
    return _parse(environ.get(ON_MISS) or MissMode.UNTUNED, ON_MISS)


def take_mode(mode: MissMode) -> None:
    """Activates a mode of the environment, unless the program has set one."""
    global _mode
    _mode = mode


def strict_by() -> str:
    """The setting that makes a miss an error, as it was made; ``""`` where misses are answered.

    Raises:
      UsageError: as ``miss_mode``.
    """
    if miss_mode() is not MissMode.STRICT:
        return ""
    return f"{ON_MISS}=strict" if _program_mode is None else 'set_miss_mode("strict")'


def count(answer: Answer, nearest: Callable[[], str]) -> None:
    """Counts one lookup and, on a miss, does what the mode says. ``nearest`` says what came nearest.

    Raises:
      NoDataError: a miss in strict mode.
    """
    _lookups[answer.rung] += 1
    if answer.rung is Rung.UNTUNED:
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
            unrecorded_misses=_unrecorded,
        )


def reset_stats() -> None:
    """Resets the counts."""
    global _forgotten, _unrecorded, _process
    with _lock:
        _lookups.update(dict.fromkeys(Rung, 0))
        _misses.clear()
        _forgotten = _unrecorded = 0
        # Counts start at zero, so they are those of another process as far as the spool is concerned.
        _process = ""


def _miss(answer: Answer, nearest: Callable[[], str]) -> None:
    global _forgotten
    key = (answer.op, answer.direction, answer.signature, answer.device)
    with _lock:
        asked = _misses.get(key, 0) + 1
        is_kept = asked > 1 or len(_misses) < MAX_KEYS
        if is_kept:
            _misses[key] = asked
        else:
            _forgotten += 1
    mode = miss_mode()
    if mode is MissMode.STRICT:
        raise NoDataError(f"{_text(key, nearest)}; sweep it, or set {ON_MISS}=untuned")
    if mode is MissMode.WARN and is_kept and asked == 1:
        warn(f"{_text(key, nearest)}; the untuned config answers")
    # Written at 1, 2, 4, 8, ...: a key that is asked for ever costs a few lines.
    if mode is MissMode.RECORD and is_kept and asked & (asked - 1) == 0:
        _record(key, asked, nearest() if asked == 1 else "")


def _text(key: _Key, nearest: Callable[[], str]) -> str:
    op, direction, signature, device = key
    return f"no tuned config for {op}.{direction} {signature} on {device}: {nearest()}"


def _record(key: _Key, asked: int, nearest: str) -> None:
    global _unrecorded
    # Only a job that records pays for the import.
    from attn_tune.runtime import miss_spool

    op, direction, signature, device = key
    line = miss_spool.SpoolLine(
        op=op,
        direction=direction,
        signature=signature,
        device=device,
        nearest=nearest,
        count=asked,
        process=_process_name(),
        time=int(time.time()),
    )
    folder = Path(_folder) if _folder else miss_spool.spool_folder()
    if not miss_spool.append(folder, line):
        with _lock:
            _unrecorded += 1
            is_first = _unrecorded == 1
        if is_first:
            log.warning("misses cannot be recorded in %s: they are only counted (attn_tune.stats())", folder)


def _process_name() -> str:
    """Names this process for all time: pids come again."""
    global _process
    with _lock:
        if not _process:
            _process = f"{os.getpid()}-{os.urandom(4).hex()}"
        return _process


def _after_fork() -> None:
    """The child counts for itself: its parent says what was asked before; and a thread may have held the lock."""
    global _lock, _process, _forgotten, _unrecorded
    _lock = threading.Lock()
    _process = ""
    _misses.clear()
    _lookups.update(dict.fromkeys(Rung, 0))
    _forgotten = _unrecorded = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _parse(mode: str, what: str) -> MissMode:
    name, colon, path = mode.partition(":")
    if name not in list(MissMode) or (colon and (name != MissMode.RECORD or not path)):
        raise UsageError(f"{what} must be one of {', '.join(MissMode)} or record:PATH, got {mode!r}")
    return MissMode(name)
