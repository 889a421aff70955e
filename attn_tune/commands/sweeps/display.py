"""Lines that show a running sweep: its devices, how far it is, and what it found. They fit a width.

Where a line is too long its parts go, those of the highest rank first: the curve, the time since the start, the kernel
that is searched, the rate, the bar, the count of right trials, the kernel of the best config, its gain, the time left.
At last the name of the point loses its beginning.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from attn_tune.reports.layout import shortened, text_width
from attn_tune.schema.words import counted, duration

if TYPE_CHECKING:
    from attn_tune.db import Activity, RunProgress
    from attn_tune.schema import Status

KEPT, ETA, GAIN, BEST_KERNEL, RIGHT, BAR, RATE, KERNEL, ELAPSED, CURVE = range(10)
BAR_WIDTH = 20
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_TURNS_A_SECOND = 4
_BLOCKS = "▁▂▃▄▅▆▇█"

type Part = tuple[int, str]


def clock(seconds: float) -> str:
    """``42s``, ``3m05s``, ``2h10m``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def sparkline(values: Iterable[float]) -> str:
    """A block for each value, higher for a larger one; empty where there are fewer than two values."""
    found = list(values)
    if len(found) < 2:
        return ""
    low, span = min(found), max(found) - min(found)
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round(top * (value - low) / span) if span else 0] for value in found)


def fitted(parts: Iterable[Part], width: int | None) -> str:
    """The parts in one line of at most ``width`` characters, two spaces apart; those of the highest rank go first."""
    kept = [(rank, text) for rank, text in parts if text]
    while width is not None and text_width(_joined(kept)) > width:
        rank = max(rank for rank, _ in kept)
        if rank == KEPT:
            longest = max(range(len(kept)), key=lambda i: text_width(kept[i][1]))
            over = text_width(_joined(kept)) - width
            room = text_width(kept[longest][1]) - over
            if room < 1:
                return shortened(_joined(kept), width)
            kept[longest] = (KEPT, shortened(kept[longest][1], room))
        else:
            kept = [part for part in kept if part[0] != rank]
    return _joined(kept)


def _joined(parts: Iterable[Part]) -> str:
    return "  ".join(text for _, text in parts).replace("  (", " (")


def screen(
    progress: "RunProgress",
    statuses: "Mapping[Status, int]",
    *,
    started_us: int,
    now_us: int,
    width: int,
    plain: bool = False,
) -> list[str]:
    """The lines for a terminal: the device, how far the sweep is, and the best config and the counts.

    Of several devices each has a line, below the others: a terminal may be too low for all. With ``plain`` there are
    no characters beyond ASCII.
    """
    turn = now_us * _TURNS_A_SECOND // 1_000_000
    spinner = "|/-\\"[turn % 4] if plain else _SPINNER[turn % len(_SPINNER)]
    several, lines = len(progress.activity) > 1, []
    for one in progress.activity:
        parts = [(KEPT, spinner), (KEPT, one.device if several else ""), *_doing(one, now_us)]
        if several:
            parts += _best(one, plain=plain, brief=True)
        lines.append(fitted(parts, width))
    if not lines:
        lines = [fitted([(KEPT, spinner), (KEPT, _idle(progress))], width)]
    far = fitted(_far(progress, started_us, now_us, plain=plain), width)
    if several:
        return [far, fitted(_counts(statuses), width), *lines]
    found = _best(progress.activity[0], plain=plain) if progress.activity else ()
    return [*lines, far, fitted([*found, *_counts(statuses)], width)]


def line(
    progress: "RunProgress",
    statuses: "Mapping[Status, int]",
    *,
    place: int = 0,
    started_us: int,
    now_us: int,
) -> str:
    """One line for a log: the activity of ``place``, then how far the sweep is."""
    if place >= len(progress.activity):
        label, found = _idle(progress), []
    else:
        one = progress.activity[place]
        label = fitted([(KEPT, one.device if len(progress.activity) > 1 else ""), *_doing(one, None)], None)
        found = list(_best(one, plain=True))
    far = _far(progress, started_us, now_us, bar=False)
    return f"{label}: {fitted([*far, *_counts(statuses), *found], None)}"


def _idle(progress: "RunProgress") -> str:
    """The word for a sweep whose devices do nothing: before the first case, or after the last."""
    return "ending" if progress.configs_done else "starting"


def _doing(one: "Activity", now_us: int | None) -> Iterator[Part]:
    """The case, the kernel and the phase; with ``now_us`` also how long the phase has taken."""
    yield KEPT, f"{one.point} {one.direction}".strip()
    yield KERNEL, one.kernel
    took = "" if now_us is None else f" {clock(max(0, now_us - one.since_us) / 1e6)}"
    yield KEPT, f"{one.phase}{took}"


def _far(
    progress: "RunProgress", started_us: int, now_us: int, *, plain: bool = False, bar: bool = True
) -> Iterator[Part]:
    done, total, elapsed = progress.configs_done, progress.configs, (now_us - started_us) / 1e6
    if bar and total:
        full = BAR_WIDTH * min(done, total) // total
        yield BAR, ("#" if plain else "━") * full + ("." if plain else "╌") * (BAR_WIDTH - full)
    if total:
        yield KEPT, f"{done}/{counted(total, 'config')}"
    if done and elapsed > 0:
        yield RATE, pace(done / elapsed)
        # Proofs and finals that remain are no configs.
        yield ETA, f"eta {clock((total - done) * elapsed / done)}" if done < total else ""
    yield ELAPSED, f"{clock(elapsed)} so far"


def pace(rate: float) -> str:
    """``1.4 configs/s``, or by the minute where that is more readable."""
    return f"{rate:.2g} configs/s" if rate >= 0.1 else f"{60 * rate:.2g} configs/min"


def _best(one: "Activity", *, plain: bool, brief: bool = False) -> Iterator[Part]:
    if one.best_us is None:
        return
    yield KEPT, f"best {duration(one.best_us * 1e3)}"
    yield BEST_KERNEL, f"({one.best_kernel})"
    if one.untuned_us:
        yield GAIN, f"{one.untuned_us / one.best_us:.2f}x{'' if brief else ' the untuned config'}"
    if not plain:
        yield CURVE, sparkline(one.curve_us)


def _counts(statuses: "Mapping[Status, int]") -> Iterator[Part]:
    """Right and failed trials."""
    right = sum(count for status, count in statuses.items() if status.is_fine)
    failed = sum(count for status, count in statuses.items() if status.is_failure)
    yield RIGHT, f"{right} ok"
    yield KEPT, f"{failed} failed"
