"""Progress of a running sweep on stderr: a few lines that are redrawn on a terminal, a line now and then elsewhere."""

import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from attn_tune.commands.sweeps import display
from attn_tune.commands.sweeps.tally import FINALS, Tally

if TYPE_CHECKING:
    from attn_tune.tuner.run.progress import Event

LINE_EVERY_S = 10.0
# A phase that is entered sooner after a line has none of its own.
PHASE_EVERY_S = 5.0
DRAW_EVERY_S = 0.25


class Ticker:
    """Calls ``tick`` every ``period_s`` in a thread of its own, for a ``with`` block; not once more after it."""

    def __init__(self, period_s: float, tick: Callable[[], object]):
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(period_s, tick), daemon=True)

    def _run(self, period_s: float, tick: Callable[[], object]) -> None:
        while not self._over.wait(period_s):
            tick()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()


def is_animated(stream: Any) -> bool:
    """Whether lines of ``stream`` can be redrawn: a terminal that is not dumb."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def is_plain(stream: Any) -> bool:
    """Whether the encoding of ``stream`` lacks the characters of bars and curves."""
    return not (getattr(stream, "encoding", None) or "").lower().startswith("utf")


class View:
    """The progress on stderr. Nothing is drawn while a config is timed on a processor, which draws too.

    On a terminal the lines are redrawn four times a second, and what else is written to stderr scrolls above them.
    Elsewhere a line tells when a device begins a case, a kernel, the finals or a long phase, and one every ten seconds.
    """

    def __init__(self, tally: Tally, console: Any = None):
        self.tally = tally
        self._lock = threading.Lock()
        self._last_us = 0
        self._stages: dict[str, tuple[str, ...]] = {}
        self._live: Any = None
        self._ticker = Ticker(DRAW_EVERY_S, self.tick)
        if console is not None or is_animated(sys.stderr):
            from rich.console import Console
            from rich.live import Live

            self._console = console or Console(stderr=True)
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                get_renderable=self._screen,
            )

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        self._ticker.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ticker.__exit__()
        if self._live:
            self._live.stop()

    def add(self, event: "Event") -> None:
        """Count one event, and tell what it changes. May be called from any thread."""
        self.tally.add(event)
        if not self._live and not self.tally.is_timing_here:
            self.tell()

    def tick(self) -> None:
        """Redraw the lines, or write one if it is due."""
        if self.tally.is_timing_here:
            return
        if self._live:
            self._live.refresh()
        else:
            self.tell()

    def tell(self) -> None:
        """Write a line for each device that has begun something, or one if none was written for a while."""
        with self._lock:
            progress, now_us = self.tally.progress(), self.tally.now_us()
            quiet_s, due = (now_us - self._last_us) / 1e6, []
            for place, one in enumerate(progress.activity):
                if not one.kernel and one.phase != FINALS:
                    continue  # Its first kernel follows at once.
                stage = (one.point, one.direction, one.kernel, str(one.phase == FINALS))
                before = self._stages.get(one.device)
                is_long = before is not None and before[-1] != one.phase and quiet_s >= PHASE_EVERY_S
                if before is None or before[:-1] != stage or is_long:
                    self._stages[one.device] = (*stage, one.phase)
                    due.append(place)
            for place in due or ([0] if quiet_s >= LINE_EVERY_S else []):
                self._last_us = now_us
                started_us = self.tally.started_us
                text = display.line(progress, self.tally.counts, place=place, started_us=started_us, now_us=now_us)
                print(text, file=sys.stderr, flush=True)

    def _screen(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        tally, console = self.tally, self._console
        lines = display.screen(
            tally.progress(),
            tally.counts,
            started_us=tally.started_us,
            now_us=tally.now_us(),
            width=console.width,
            plain=is_plain(console.file),
        )
        return Group(*(Text(one, no_wrap=True) for one in lines))
