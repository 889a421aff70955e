"""The loop of a sweep: hands the cases of a plan to executors, yields trials. Knows no database and no terminal."""

import dataclasses
import logging
import threading
from collections.abc import Callable, Generator, Iterator

from attn_tune.schema.device import Device
from attn_tune.tuner.plan.plan import Plan
from attn_tune.tuner.plan.strategies.exhaustive import exhaustive
from attn_tune.tuner.plan.strategies.space import Strategy
from attn_tune.tuner.protocol import MeasurePolicy
from attn_tune.tuner.run.case_queue import CaseQueue, Turn
from attn_tune.tuner.run.case_run import CaseRun
from attn_tune.tuner.run.executor import Executor, ExecutorError, Interrupted
from attn_tune.tuner.run.fleet.fleet import Fleet
from attn_tune.tuner.run.progress import Event, PhaseEntered, ProgressKind, ProgressMeter
from attn_tune.tuner.run.search import StopSearch

logger = logging.getLogger(__name__)


def sweep(
    plan: Plan,
    executor: Executor | Fleet,
    *,
    budget_s: float | None = None,
    stop: threading.Event | None = None,
    strategy: Strategy = exhaustive,
    policy: MeasurePolicy | None = None,
    on_phase: Callable[[PhaseEntered], object] = lambda event: None,
) -> Iterator[Event]:
    """Run ``plan``, yielding each trial as it ends, and progress in between.

    A ``Fleet`` spreads the cases over its devices; the events of one case stay in order, and each executor waits until
    its last event was taken. An executor that cannot continue gives its case back, once for each case, and the others
    finish it.

    The last event is always ``SWEEP_FINISHED``; its ``reason`` says why. ``budget_s`` ends the sweep after the configs
    in progress; setting ``stop`` ends it at once, and only those configs are lost. What was yielded stands: a plan
    made with it continues from there. ``on_phase`` is called when a worker enters a phase, in the thread of its
    device, and must be quick.

    Raises:
      ExecutorError: no executor is left that can start a worker.
    """
    run = _Sweep(
        plan=plan,
        fleet=executor if isinstance(executor, Fleet) else Fleet([executor]),
        budget_s=budget_s,
        stop=stop or threading.Event(),
        strategy=strategy,
        policy=policy or MeasurePolicy(),
        on_phase=on_phase,
    )
    return run.events()


@dataclasses.dataclass
class _Sweep:
    """The state of one sweep, shared by its executors' threads. ``abandoned`` is set when the reader has left."""

    plan: Plan
    fleet: Fleet
    budget_s: float | None
    stop: threading.Event
    strategy: Strategy
    policy: MeasurePolicy
    on_phase: Callable[[PhaseEntered], object]
    abandoned: threading.Event = dataclasses.field(default_factory=threading.Event)
    lost: list[ExecutorError] = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.meter = ProgressMeter(
            todo=self.plan.counts.todo,
            cases=sum(not case.is_idle for case in self.plan.cases),
            devices=self.fleet.names,
            platform=self.plan.device.platform,
        )
        self.queue = CaseQueue(self.plan.cases, self._should_stop)

    def events(self) -> Iterator[Event]:
        """Everything that happens; what belongs to one case is in order."""
        yield self.meter.progress(ProgressKind.SWEEP_STARTED)
        yield from self.fleet.walk(self._serve, self.abandoned)
        if len(self.lost) == len(self.fleet.executors):
            raise self.lost[-1]
        reason = "stopped" if self.stop.is_set() else "budget"
        if self.queue.empty:
            reason = "finished"
        yield self.meter.progress(ProgressKind.SWEEP_FINISHED, reason=reason)

    def _serve(self, executor: Executor, device: Device | None) -> Generator[Event]:
        """Case after case on one executor, until there is none, or no executor."""
        executor.interrupt = self._interrupted
        place = next(i for i, one in enumerate(self.fleet.executors) if one is executor)
        executor.on_phase = lambda phase: self.on_phase(PhaseEntered(place=place, phase=phase))
        try:
            while (turn := self.queue.take()) is not None:
                yield from self._case(turn, executor, device or self.plan.device, place)
        except (StopSearch, Interrupted):
            return
        except ExecutorError as error:
            self.lost.append(error)
        finally:
            executor.expect((), self.plan.device)

    def _case(self, turn: Turn, executor: Executor, device: Device, place: int) -> Iterator[Event]:
        case = turn.plan.case
        run = CaseRun(
            plan=turn.plan,
            executor=executor,
            device=device,
            meter=self.meter,
            should_stop=self._should_stop,
            policy=self.policy,
            strategy=self.strategy,
            upcoming=self.queue.peek,
            place=place,
        )
        try:
            yield from run.events()
        except ExecutorError as error:
            fate = "others continue it" if turn.may_return else "given up, for it lost two"
            logger.warning("%s: the device is lost, %s: %s", case.label, fate, error)
            rest = run.rest()
            # Reported before another executor can take the case.
            yield self.meter.progress(ProgressKind.CASE_RETURNED, case=case, reason=str(error), place=place)
            if turn.may_return:
                self.queue.give_back(turn, rest)
            else:
                # What is left of it stays left: another sweep may try it.
                self.queue.finish()
            raise
        self.queue.finish()

    def _interrupted(self) -> bool:
        return self.stop.is_set() or self.abandoned.is_set()

    def _should_stop(self) -> bool:
        late = self.budget_s is not None and self.meter.elapsed_s >= self.budget_s
        return late or self._interrupted()
