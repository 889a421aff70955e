"""A sweep whose trials are stored in a lab database as they come."""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from attn_tune.commands.shared import output, selection
from attn_tune.commands.shared.cases import Cases, Search
from attn_tune.commands.shared.database import open_lab
from attn_tune.commands.sweeps.heartbeat import beating
from attn_tune.schema import Decision, Device, Environment, Rule, Signature, Stage, Status, Trial
from attn_tune.schema.conditions import SHARED_HOST, Conditions

if TYPE_CHECKING:
    from attn_tune.commands.shared.sources import Sources
    from attn_tune.commands.sweeps.tally import Tally
    from attn_tune.db import Database
    from attn_tune.kernels.spec import KernelSpec
    from attn_tune.tuner.plan.case import Case, GridPoint
    from attn_tune.tuner.plan.hints import Proposal
    from attn_tune.tuner.plan.plan import Plan
    from attn_tune.tuner.plan.planner import Priors
    from attn_tune.tuner.plan.strategies.effort import Effort
    from attn_tune.tuner.plan.strategies.space import Prior
    from attn_tune.tuner.run.executor import Executor
    from attn_tune.tuner.run.fleet.fleet import Fleet
    from attn_tune.tuner.run.progress import Event, PhaseEntered, Progress


@dataclass(frozen=True, kw_only=True)
class SweepRequest:
    """The cases and the database of a sweep.

    Attributes:
      points: the problems.
      kernels: the kernels, of any op.
      directions: the directions, of any op.
      database: the path of the lab database.
      effort: how much is tried; None is everything.
      budget_s: the most wall time; None is no limit.
      resume: whether trials of an equal device and environment are left out.
      allow_nondeterministic: as ``make_plan``.
      allow_unproven: as ``make_plan``.
      hints: configs that are tried first.
    """

    points: "Sequence[GridPoint]"
    kernels: "Sequence[KernelSpec]"
    directions: Sequence[str]
    database: Path
    effort: "Effort | None" = None
    budget_s: float | None = None
    resume: bool = True
    allow_nondeterministic: bool = False
    allow_unproven: bool = False
    hints: "Sequence[Proposal]" = ()

    @classmethod
    def of(
        cls,
        database: Path,
        cases: "Cases",
        sources: "Sources",
        search: "Search",
        *,
        only_compiles: bool = False,
        **more: Any,
    ) -> Self:
        """The request that the options of a command make; a kernel that is named may be nondeterministic.

        Raises:
          UsageError: a name is unknown, or options contradict one another.
        """
        return cls(
            points=cases.points(sources),
            kernels=cases.kernels(),
            directions=cases.directions(),
            database=database,
            effort=search.made(only_compiles=only_compiles),
            allow_nondeterministic=search.allow_nondeterministic or bool(cases.kernel),
            hints=search.proposals(),
            **more,
        )


@dataclass(frozen=True, kw_only=True)
class SweepOutcome:
    """The end of a sweep and the state of its cases.

    Attributes:
      ending: ``"finished"``, ``"budget"`` or ``"stopped"``.
      plan: the plan that was followed.
      device: the device.
      run_id: the number of the run in the database.
      decisions: the decisions of the cases, of this run and earlier ones.
      trials: the number of trials of this run.
      without: labels of cases that have no valid config.
      unsupported: labels of cases that none of the kernels supports.
      unfinished: labels of cases that were begun and have no decision, or one of a search without its final.
      not_started: labels of cases that were not begun, likewise.
    """

    ending: str
    plan: "Plan"
    device: Device
    run_id: int
    decisions: tuple[Decision, ...]
    trials: int = 0
    without: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()
    not_started: tuple[str, ...] = ()


def say_left_out(request: SweepRequest, device: Device) -> None:
    """Name the kernels that could run a case of ``request`` on ``device`` and are left out as not deterministic."""
    away = selection.absent(request.kernels, device)
    cases = {
        (point.op, direction)
        for point in request.points
        for direction in request.directions
        if not point.directions or direction in point.directions
    }
    names = sorted(
        spec.id
        for spec in request.kernels
        if spec.id not in away and any(op == spec.op and spec.needs_leave(direction) for op, direction in cases)
    )
    if names and not request.allow_nondeterministic:
        output.note(f"left out, not deterministic: {', '.join(names)} (--allow-nondeterministic)")


def plan_sweep(
    request: SweepRequest,
    device: Device,
    environment: Environment,
    database: "Database | None",
    device_count: int = 1,
) -> "Plan":
    """The plan of ``request``; with a database and ``resume``, without what it already holds."""
    from attn_tune.tuner.plan.planner import make_plan

    say_left_out(request, device)
    known = database if request.resume else None

    def measured(kernel: str, direction: str, signature: Signature, env: Environment) -> Any:
        lenient = request.allow_nondeterministic
        return known and known.measured(kernel, direction, signature, device, env, allow_nondeterministic=lenient)

    def history(kernel: str, direction: str, signature: Signature, env: Environment) -> Any:
        return known and known.trials(kernel=kernel, direction=direction, signature=signature, device=device)

    return make_plan(
        request.points,
        kernels=request.kernels,
        device=device,
        environment=environment,
        directions=request.directions,
        effort=request.effort,
        allow_nondeterministic=request.allow_nondeterministic,
        allow_unproven=request.allow_unproven,
        hints=request.hints,
        device_count=device_count,
        priors=_priors(database, device),
        **({"measured": measured, "history": history} if known else {}),
    )


def _priors(database: "Database | None", device: Device) -> "Priors":
    """Asks ``database`` what other cases measured, on this device or one of its family; packs where it has nothing."""
    from attn_tune.ops.registry import get_op
    from attn_tune.tuner.plan.pack_hints import cases_in_packs
    from attn_tune.tuner.plan.strategies.space import PastCase, Prior

    def prior(kernel: str, direction: str, part: str, signature: Signature, environment: Environment) -> "Prior":
        packed = cases_in_packs(get_op(signature.op), kernel, direction, part, device)
        if database is None:
            return Prior(cases=packed)
        # A sweep over several devices asks in threads of their own; a connection belongs to one thread.
        with open_lab(database.path) as reader:
            found = reader.past_searches(kernel=kernel, direction=direction, part=part, family=device.family)
        here = (signature, device.digest, environment.digest)
        own = [
            PastCase(
                signature=past.signature,
                times=past.times_ns,
                same_device=past.device == device.digest,
            )
            for past in found
            if (past.signature, past.device, past.environment) != here
        ]
        measured = {past.signature for past in found}
        return Prior(cases=(*own, *(one for one in packed if one.signature not in measured)))

    return prior


def run_sweep(
    request: SweepRequest,
    executor: "Executor | Fleet",
    *,
    watch: "Callable[[Event], None]",
    stop: threading.Event,
) -> SweepOutcome:
    """Runs ``request`` on ``executor``; every trial is durable before the next one on its device starts.

    ``watch`` is called from the threads of the devices too, when they enter a phase.
    """
    from attn_tune.commands.sweeps.tally import Tally
    from attn_tune.tuner.plan.strategies.effort import Effort
    from attn_tune.tuner.run.fleet.fleet import Fleet
    from attn_tune.tuner.run.progress import ProgressKind
    from attn_tune.tuner.run.sweep import sweep

    strategy = (request.effort or Effort()).search
    is_shared = executor.is_shared if isinstance(executor, Fleet) else lambda: False
    tally = Tally()
    identity = executor.identify()
    begun: set[Case] = set()
    settled: set[Case] = set()
    with open_lab(request.database, create=True) as database:
        plan = plan_sweep(request, identity.device, identity.environment, database, identity.device_count)

        def mark(trial: Trial) -> Trial:
            return _on_shared_host(trial) if trial.stage is Stage.FINAL and is_shared() else trial

        def follow(event: "Progress") -> bool:
            if event.kind is ProgressKind.CASE_STARTED and event.case:
                begun.add(event.case)
            if event.kind is ProgressKind.CASE_FINISHED and event.case:
                settled.add(event.case)
                # Decided at once, so that a killed sweep leaves nothing finished undecided.
                database.rebuild_decisions(signatures=[event.case.signature])
                return bool(_decisions(database, event.case, identity.device))
            return False

        def on_phase(event: "PhaseEntered") -> None:
            tally.add(event)
            watch(event)

        run = record_run(
            database,
            identity.device,
            identity.environment,
            sweep(plan, executor, budget_s=request.budget_s, stop=stop, strategy=strategy, on_phase=on_phase),
            tally=tally,
            watch=watch,
            mark=mark,
            follow=follow,
        )
        decisions = tuple(_decide(database, plan))
    decided = {(d.signature, d.direction) for d in decisions}
    # Of a sweep that ended before its time what a search alone has decided waits for its final.
    waiting = {(d.signature, d.direction) for d in decisions if d.rule is Rule.SEARCH and run.ending != "finished"}
    fates: dict[str, tuple[str, ...]] = {}
    for one in plan.cases:
        case = one.case
        key = case.signature, case.direction
        if key in decided and (key not in waiting or case in settled or one.is_idle):
            continue
        # A case in which nothing can run, or nothing is left to run, is never begun.
        if all(kernel.refusal is Status.UNSUPPORTED for kernel in one.kernels):
            fate = "unsupported"
        elif run.ending == "finished" or case in settled or one.is_idle:
            fate = "without"
        else:
            fate = "unfinished" if case in begun else "not_started"
        fates[fate] = (*fates.get(fate, ()), case.label)
    return SweepOutcome(
        ending=run.ending,
        plan=plan,
        device=identity.device,
        run_id=run.run_id,
        decisions=decisions,
        trials=run.trials,
        **fates,
    )


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run in the database that is over.

    Attributes:
      run_id: its number.
      trials: the number of its trials.
      ending: ``"finished"``, ``"budget"`` or ``"stopped"``.
    """

    run_id: int
    trials: int
    ending: str


def record_run(
    database: "Database",
    device: Device,
    environment: Environment,
    events: "Iterable[Event]",
    *,
    tally: "Tally",
    watch: "Callable[[Event], None]",
    mark: Callable[[Trial], Trial] = lambda trial: trial,
    follow: "Callable[[Progress], bool]" = lambda event: False,
) -> Run:
    """Store the trials among ``events`` as a new run, each before the next event is taken; and the progress, meanwhile.

    ``mark`` may change a trial before it is stored. ``follow`` is given the progress; at the end of a case it returns
    whether the case has a winner. ``watch`` and ``tally`` are given all.
    """
    from attn_tune.tuner.run.progress import Progress, ProgressKind

    run_id = database.begin_run(device=device, environment=environment, argv=sys.argv, started_us=tally.started_us)
    ending, trials, reason = "failed", 0, "finished"
    try:
        with beating(database.path, run_id, tally):
            for event in events:
                if isinstance(event, Trial):
                    event = mark(event)
                    database.record(run_id, event)
                    trials += 1
                # A case is counted as done and as decided at once: another thread stores the counts.
                tally.add(event, is_decided=isinstance(event, Progress) and follow(event))
                if isinstance(event, Progress):
                    database.heartbeat(run_id, tally.progress())
                    if event.kind is ProgressKind.SWEEP_FINISHED:
                        reason = event.reason
                watch(event)
        # The thread of before may have stored last what it had read before the last event.
        database.heartbeat(run_id, tally.progress())
        ending = "interrupted" if reason == "stopped" else "finished"
    except KeyboardInterrupt:
        ending = "interrupted"
        raise
    finally:
        database.end_run(run_id, ending)
    return Run(run_id=run_id, trials=trials, ending=reason)


def _on_shared_host(trial: Trial) -> Trial:
    """``trial`` with the remark that another sweep ran on the host meanwhile."""
    conditions = trial.conditions or Conditions()
    throttle = (*conditions.throttle, SHARED_HOST)
    return replace(trial, conditions=replace(conditions, throttle=throttle))


def _decide(database: "Database", plan: "Plan") -> Iterator[Decision]:
    database.rebuild_decisions(signatures=list({c.case.signature for c in plan.cases}))
    for planned in plan.cases:
        yield from _decisions(database, planned.case, plan.device)


def _decisions(database: "Database", case: "Case", device: Device) -> list[Decision]:
    return database.decisions(op=case.signature.op, direction=case.direction, signature=case.signature, device=device)
