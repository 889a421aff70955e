"""Compile, prove and time candidates, and store every trial.

Ctrl-C stops cleanly: only the config in progress is lost, and the same command continues.
With --target nothing runs: candidates are compiled for a device that need not be here, and their times predicted.

Example: attn-tune sweep --grid llama3-8b --lengths 4k --budget 20m
"""

import contextlib
import queue
import shlex
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attn_tune.commands.plan import show_plan
from attn_tune.commands.shared import options, output, selection
from attn_tune.commands.shared.cases import Cases, Search
from attn_tune.commands.shared.database import open_lab
from attn_tune.commands.shared.exit_codes import FAILED, INTERRUPTED
from attn_tune.commands.shared.shipping import gate_lines, steps_to_ship
from attn_tune.commands.shared.sources import Sources
from attn_tune.commands.sweeps.database_sweep import SweepOutcome, SweepRequest, run_sweep
from attn_tune.commands.sweeps.hosts import Hosts, open_fleet
from attn_tune.schema import AttnTuneError, Status, config_digest
from attn_tune.schema.trial import WHOLE, count_words
from attn_tune.schema.words import counted

if TYPE_CHECKING:
    from attn_tune.db import Database
    from attn_tune.tuner.run.progress import Event

PLAN_ALL = "'attn-tune plan --all'"


@options.grouped
def command(
    db: options.Database,
    cases: Cases,
    sources: Sources,
    search: Search,
    hosts: Hosts,
    allow_unproven: bool = options.flag(
        "--allow-unproven",
        "Also decide on configs that no feature problem of the op could be run with.",
    ),
    budget: str | None = options.option(
        None, "--budget", "TIME", "Stop after so much time: 90s, 10m, 2h. Default: none."
    ),
    resume: bool = options.flag(
        "--resume/--no-resume",
        "Skip what the database holds from an equal device and environment.",
        True,
    ),
    dry_run: bool = options.flag("--dry-run", "Only show the plan, as 'attn-tune plan' does."),
    target: options.Target = None,
    json: options.Json = False,
) -> None:
    request = SweepRequest.of(
        db,
        cases,
        sources,
        search,
        only_compiles=target is not None,
        allow_unproven=allow_unproven,
        budget_s=options.seconds(budget) if budget else None,
        resume=resume,
    )
    if target is not None:
        hosts.check_unused()
        _only_compile(request, target, dry_run=dry_run, json=json)
        return
    if dry_run:
        show_plan(request, device=None, json=json, how=PLAN_ALL)
        return
    outcome = _run(request, hosts)
    _show(outcome, db, cases.grid, json)
    if outcome.ending == "stopped":
        raise typer.Exit(INTERRUPTED)
    nothing = outcome.unsupported and not outcome.decisions
    if (outcome.without or nothing) and outcome.ending == "finished":
        raise typer.Exit(FAILED)


def _only_compile(request: SweepRequest, name: str, *, dry_run: bool, json: bool) -> None:
    from attn_tune.commands.sweeps.target_sweep import for_target, run_target, show_target

    request, target = for_target(request, name)
    if dry_run:
        show_plan(request, device=target.device.variant, json=json, how=PLAN_ALL)
        return
    with _watched(compiles_only=True) as (stop, watch):
        outcome = run_target(request, target, watch=watch, stop=stop)
    fits = show_target(outcome, request, target, json)
    if outcome.ending == "stopped":
        raise typer.Exit(INTERRUPTED)
    if not fits and outcome.ending == "finished":
        raise typer.Exit(FAILED)


def _run(request: SweepRequest, hosts: Hosts) -> SweepOutcome:
    from attn_tune.tuner.plan.case import make_cases

    cases = len(make_cases(request.points, request.directions))
    with _watched() as (stop, watch), open_fleet(hosts, cases, stop) as devices:
        return run_sweep(request, devices, watch=watch, stop=stop)


@contextlib.contextmanager
def _watched(*, compiles_only: bool = False) -> "Iterator[tuple[threading.Event, Callable[[Event], None]]]":
    """An event that Ctrl-C sets, and a function that shows the events of a sweep."""
    from attn_tune.commands.sweeps.progress import View
    from attn_tune.commands.sweeps.tally import Tally

    stop = threading.Event()
    with _stopping(stop), View(Tally(compiles_only=compiles_only)) as view:
        yield stop, view.add


@contextlib.contextmanager
def _stopping(stop: threading.Event) -> Iterator[None]:
    """Set ``stop`` on Ctrl-C or a termination signal. A second Ctrl-C is an error at once."""
    # A handler may interrupt the main thread while it writes, and must not write itself.
    messages: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def ask(number: int, frame: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not stop.is_set():
            messages.put("stopping; what was measured is stored")
        stop.set()

    def say() -> None:
        for text in iter(messages.get, None):
            output.note(text)

    speaker = threading.Thread(target=say, daemon=True)
    speaker.start()
    before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        messages.put(None)
        speaker.join()


def _show(outcome: SweepOutcome, db: Path, grids: Sequence[str] | None, json: bool) -> None:
    from attn_tune.db import objections_to
    from attn_tune.reports import frames

    names = {c.case.signature.text: selection.brief("+".join(c.case.names)) for c in outcome.plan.cases}
    winners = frames.summary([d for d in outcome.decisions if d.rank == 0], names)
    with open_lab(db) as database:
        trials = database.frame("trials", run=outcome.run_id)
        objections = objections_to(database, outcome.decisions)
        wrong = list(_wrong_untuned(outcome, database))
        outvoted = list(_outvoted(outcome, database))
    counts = frames.status_counts(trials)
    counts_done = outcome.plan.counts.done
    if json:
        output.emit_json(
            ending=outcome.ending,
            database=str(db),
            run=outcome.run_id,
            device=outcome.device.identity,
            trials=outcome.trials,
            tried_before=counts_done,
            decisions=winners,
            statuses=counts,
            export_refuses=[one.facts for one in objections],
            wrong_untuned=wrong,
            without_valid_config=outcome.without,
            unsupported=outcome.unsupported,
            not_finished=outcome.unfinished,
            not_started=outcome.not_started,
        )
    else:
        columns = ["rank", "signature", "device", "trials", "samples"]
        title = f"Winners on {outcome.device}"
        if winners.empty:
            output.say(f"{title}: none")
        else:
            output.emit_winners(winners.drop(columns=columns), title=title)
        # Of the whole plan: an earlier run may have stored why a kernel cannot run.
        away = selection.absent((k.kernel for c in outcome.plan.cases for k in c.kernels), outcome.device)
        ran = frames.occurring(counts.loc[~counts["kernel"].isin(list(away))])
        if not ran.empty:
            print()
            output.emit_frame(ran, title="Trials of this run")
        words = count_words(Counter(map(Status, trials["status"])))
        missing = frames.left_out(counts, away)
        output.say(f"{counted(outcome.trials, 'trial')} of run {outcome.run_id}: {words}{missing}")
        output.say_absent(away, PLAN_ALL)
        print()
        for line in _next_steps(outcome, db, grids, counts_done):
            print(line)
        for line in gate_lines(objections, len(outcome.decisions)):
            output.say(line)
    if unproven := sum(counts[Status.UNPROVEN]) if Status.UNPROVEN in counts else 0:
        output.note(
            f"{counted(unproven, 'config')} ran no feature problem of the op and decided nothing (--allow-unproven)"
        )
    for one in wrong:
        output.note(
            f"{one['kernel']} is wrong untuned: {one['point']} {one['direction']}; calls of it without a tuned config "
            "give wrong results"
        )
    for fate, labels in (
        ("no valid config", outcome.without),
        ("unsupported by every kernel asked for", outcome.unsupported),
        ("not finished", outcome.unfinished),
    ):
        for label in labels:
            output.note(f"{fate}: {label}")
    for kernel, label in outvoted:
        output.note(
            f"{kernel}: its source of here was right at {label}, and another source that was not was tried later; "
            "--no-resume measures this one again"
        )
    if outcome.unsupported:
        output.note(f"{PLAN_ALL} with the same options says why a kernel does not support them")
    if outcome.without and not (failed := frames.failures(trials)).empty:
        most = frames.commonest_failure(failed)
        report = f"attn-tune report --section failures --db {shlex.quote(str(db))}"
        output.note(
            f"the commonest failure, {counted(most['trials'], 'time')}: {most['kernel']} {most['direction']} "
            f"{most['status']}: {most['reason']}; '{report}' lists all"
        )
    if outcome.not_started:
        output.note(f"not started: {counted(len(outcome.not_started), 'case')}")


def _wrong_untuned(outcome: SweepOutcome, database: "Database") -> Iterator[dict[str, str]]:
    """Kernels whose own untuned config, or a part of it, was found wrong, with the problem and the direction."""
    for planned in outcome.plan.cases:
        case = planned.case
        for kernel in planned.kernels:
            if not kernel.runnable:
                continue
            spec, untuned = kernel.kernel.id, kernel.heuristic
            known = database.measured(spec, case.direction, case.signature, outcome.device, kernel.environment)
            own = [(WHOLE, untuned), *((p.part, untuned[p.part]) for p in kernel.parts if p.part)]
            if any(known.get((p, config_digest(c))) is Status.INCORRECT for p, c in own):
                yield {
                    "kernel": spec,
                    "direction": case.direction,
                    "signature": case.signature.text,
                    "point": selection.brief("+".join(case.names)) or case.signature.text,
                }


def _outvoted(outcome: SweepOutcome, database: "Database") -> Iterator[tuple[str, str]]:
    """Kernels of cases without a decision whose own source was right before another one failed, with the case."""
    from attn_tune.db import find_outvoted

    for planned in outcome.plan.cases:
        case = planned.case
        for kernel in planned.kernels if case.label in outcome.without else ():
            asked = {"kernel": kernel.kernel.id, "direction": case.direction, "signature": case.signature}
            before = find_outvoted(database.recorded(**asked, device=outcome.device))
            if before and before.trial.environment.source_hash == kernel.environment.source_hash:
                yield kernel.kernel.id, case.label


def _next_steps(outcome: SweepOutcome, db: Path, grids: Sequence[str] | None, done: int) -> Iterator[str]:
    if outcome.ending == "stopped":
        yield "Stopped. Everything measured is stored; the same command continues from here."
    elif outcome.ending == "budget":
        yield "The time is spent. Everything measured is stored; the same command continues from here."
    elif not outcome.trials:
        yield f"Nothing was left to do: {counted(done, 'config')} were tried before in an equal environment."
    if outcome.decisions:
        place, point = shlex.quote(str(db)), _point(outcome, grids)
        yield "Next:"
        yield f"  attn-tune report --db {place}"
        yield f"  attn-tune best {point} --db {place}"
        yield "Calls read packs, not the lab database. To use these configs:"
        yield from steps_to_ship(db, outcome.decisions)
        yield f"  attn-tune explain {point}"


def _point(outcome: SweepOutcome, grids: Sequence[str] | None) -> str:
    """The first decided problem as other commands take it: by its name if they know it, else by its signature."""
    signature = outcome.decisions[0].signature
    names = next(c.case.names for c in outcome.plan.cases if c.case.signature == signature)
    for known in ((), tuple(grids or ())):
        try:
            if selection.signature(names[0], known).signature == signature:
                return shlex.join([names[0], *(w for name in known for w in ("--grid", name))])
        except (AttnTuneError, IndexError):
            continue
    return shlex.quote(signature.text)
