"""Show the progress of the running sweep, or the end of the last one.

With --watch it is shown until the sweep ends, then its end. Where none runs, the next one is waited for. Ctrl-C ends
the watching alone.

Example: attn-tune status --db sweep.db --watch
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attn_tune.commands.shared import options, output
from attn_tune.commands.shared.database import open_lab
from attn_tune.commands.sweeps import display
from attn_tune.commands.sweeps.display import clock
from attn_tune.schema import NoDataError, UsageError
from attn_tune.schema.trial import count_words
from attn_tune.schema.words import command_words, counted, duration, printable

if TYPE_CHECKING:
    from attn_tune.db import Activity, RunProgress, RunStatus

EVERY_S = 1.0
# Of --watch: a day.
MOST_S = 86_400


def command(
    db: options.Database,
    seconds: float | None = options.argument("SECONDS", "With --watch: the time between two looks. Default: 1.", None),
    watch: bool = options.flag("--watch -w", "Show it again and again, until the sweep ends; wait for one first."),
    json: options.Json = False,
) -> None:
    if seconds is not None and not watch:
        raise UsageError(f"{seconds:g} is the time between two looks of --watch; give --watch too")
    if seconds is not None and not 0 < seconds <= MOST_S:
        raise UsageError(f"the time between two looks must be above 0 and at most {MOST_S} s, got {seconds:g}")
    now = _watched(db, EVERY_S if seconds is None else seconds, quiet=json) if watch else _look(db)
    if json:
        output.emit_json(**_data(now))
    else:
        for line in _lines(db, now):
            output.say(line, indent=11)


def _look(db: Path) -> "RunStatus":
    with open_lab(db) as database:
        return database.status()


def _watched(db: Path, every_s: float, *, quiet: bool) -> "RunStatus":
    """Show the running run, or the next one, unless ``quiet``, until it ends; its status then."""
    from attn_tune.commands.sweeps.progress import is_animated

    now = _awaited(db, every_s)
    if quiet or not is_animated(sys.stdout):
        last = ""
        while now.running:
            text = display.line(_progress(now), now.counts, started_us=now.started_us, now_us=_us())
            if not quiet and text != last:
                print(printable(text), flush=True)
                last = text
            _pause(every_s)
            now = _look(db)
        return now
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while now.running:
            live.update(_picture(db, now, console), refresh=True)
            _pause(every_s)
            now = _look(db)
    return now


def _awaited(db: Path, every_s: float) -> "RunStatus":
    """The status of the running run; without one, of the first that begins, which may have ended since."""
    last: int | None = None
    is_first = True
    while True:
        try:
            now = _look(db)
        except NoDataError:  # the sweep makes the file
            now = None
        if now is not None and (now.running or (not is_first and now.run_id != last)):
            return now
        if is_first:
            before = f"; run {now.run_id} is {_state(now)}" if now is not None and now.run_id is not None else ""
            output.note(f"{db}: no sweep runs{before}. Waiting for the next one, until Ctrl-C")
            last, is_first = now.run_id if now else None, False
        _pause(every_s)


def _pause(every_s: float) -> None:
    """Sleep until the next look; the command ends once the reader of its output is gone."""
    time.sleep(every_s)
    if output.is_unread():
        raise typer.Exit


def _picture(db: Path, now: "RunStatus", console: Any) -> Any:
    from rich.console import Group
    from rich.text import Text

    from attn_tune.commands.sweeps.progress import is_plain

    parts = [(0, f"{db}: run {now.run_id} on {now.device}"), (2, f"(pid {now.pid})")]
    head = display.fitted(parts, console.width)
    screen = display.screen(
        _progress(now),
        now.counts,
        started_us=now.started_us,
        now_us=_us(),
        width=console.width,
        plain=is_plain(console.file),
    )
    tail = display.fitted([(1, _cases(now.progress)), (0, _life(now))], console.width)
    return Group(*(Text(line, no_wrap=True) for line in (head, *screen, tail)))


def _us() -> int:
    return time.time_ns() // 1000


def _progress(now: "RunStatus") -> "RunProgress":
    from attn_tune.db import RunProgress

    return now.progress or RunProgress()


def _elapsed_s(now: "RunStatus") -> float:
    """Seconds since the start, or of work: of a run that died the last sign of life is all that is known."""
    last = _us() if now.running else now.ended_us or now.heartbeat_us
    return (last - now.started_us) / 1e6


def _rate(now: "RunStatus") -> float | None:
    """Configs a second, up to the last sign of life."""
    took = (now.heartbeat_us - now.started_us) / 1e6
    done = now.progress.configs_done if now.progress else 0
    return done / took if done and took > 0 else None


def _eta_s(now: "RunStatus") -> float | None:
    rate = _rate(now)
    if rate is None or now.progress is None or not now.running or not _left(now.progress):
        return None
    return _left(now.progress) / rate


def _data(now: "RunStatus") -> dict[str, Any]:
    """The status as JSON has it."""
    known = now.progress
    return {
        "state": now.state,
        "run": now.run_id,
        "host": now.host,
        "pid": now.pid,
        "command": command_words(now.argv),
        "device": now.device.identity if now.device else None,
        "elapsed_s": round(_elapsed_s(now), 3),
        "silent_s": round((_us() - now.heartbeat_us) / 1e6, 3) if now.running else None,
        "configs": known and {"planned": known.configs, "done": known.configs_done, "left": _left(known)},
        "cases": known
        and {
            "planned": known.cases,
            "done": known.cases_done,
            "with_winner": known.cases_decided,
            "without_winner": known.cases_done - known.cases_decided,
            "left": _left_cases(known),
        },
        "configs_per_s": _rate(now),
        "eta_s": _eta_s(now),
        "activity": [_activity(one) for one in known.activity] if known else [],
        "trials": now.trials,
        "statuses": {str(name): number for name, number in now.counts.items()},
    }


def _activity(one: "Activity") -> dict[str, Any]:
    return {
        "device": one.device,
        "point": one.point,
        "direction": one.direction,
        "kernel": one.kernel,
        "phase": one.phase,
        "phase_s": round(max(0, _us() - one.since_us) / 1e6, 3),
        "best_kernel": one.best_kernel,
        "best_us": one.best_us,
        "untuned_us": one.untuned_us,
    }


def _left(known: "RunProgress") -> int:
    return max(0, known.configs - known.configs_done)


def _lines(db: Path, now: "RunStatus") -> Iterator[str]:
    if now.run_id is None:
        yield f"{db}: no sweep has run yet"
        return
    yield f"{db}: run {now.run_id} is {_state(now)}, on {now.device} of {now.host} (pid {now.pid})"
    yield f"  command  {command_words(now.argv)}"
    known = now.progress
    if known is not None:
        # Of a run that was killed it says where that was.
        for one in known.activity if now.state in ("running", "interrupted") else ():
            doing = _doing(one, several=len(known.activity) > 1, is_running=now.running)
            yield f"  {'now' if now.running else 'was at':<8} {doing}"
            if one.best_us is not None:
                gain = f", {one.untuned_us / one.best_us:.2f}x the untuned config" if one.untuned_us else ""
                yield f"  {'best':<8} {duration(one.best_us * 1e3)} ({one.best_kernel}){gain}"
        pace = [f"{known.configs_done} of {known.configs} done, {_left(known)} left"]
        if rate := _rate(now):
            pace.append(display.pace(rate))
        if (eta := _eta_s(now)) is not None:
            pace.append(f"eta {clock(eta)}")
        yield f"  configs  {', '.join(pace)}"
        yield f"  cases    {_cases(known, label=False)}"
    yield f"  time     {clock(_elapsed_s(now))}{' since the start' if now.running else ' of work'}"
    yield f"  trials   {now.trials}: {count_words(now.counts)}"
    if now.running:
        yield f"  {_life(now)}"


def _state(now: "RunStatus") -> str:
    """The state in words: a sweep whose time ran out is finished, though cases are left."""
    left = now.progress is not None and now.state == "finished" and _left_cases(now.progress)
    return f"{now.state} with {counted(left, 'case')} left" if left else now.state


def _left_cases(known: "RunProgress") -> int:
    return max(0, known.cases - known.cases_done)


def _doing(one: "Activity", *, several: bool, is_running: bool) -> str:
    """The case, the kernel and the phase of a device."""
    where = f"{one.device}: " if several else ""
    took = f" for {clock((_us() - one.since_us) / 1e6)}" if is_running else ""
    case = f"{one.point} {one.direction}".strip()
    return where + ", ".join(filter(None, (case, one.kernel, one.phase + took)))


def _cases(known: "RunProgress | None", *, label: bool = True) -> str:
    """Cases with a winner, without one, and those that are left; without ``label`` they are not called cases."""
    if known is None:
        return ""
    without = known.cases_done - known.cases_decided
    return (
        f"{known.cases_done} of {counted(known.cases, 'case') if label else known.cases} done: "
        f"{known.cases_decided} with a winner, "
        f"{without} without; {_left_cases(known)} left"
    )


def _life(now: "RunStatus") -> str:
    return f"last sign of life {clock(max(0, _us() - now.heartbeat_us) / 1e6)} ago"
