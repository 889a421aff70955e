"""The loop of a sweep: walks a plan, asks an executor, yields trials. Knows no database and no terminal."""

import dataclasses
import logging
import threading
import time
import uuid
from collections.abc import Iterator, Sequence

from attn_tune.schema.config import config_digest
from attn_tune.schema.trial import WHOLE, Stage
from attn_tune.tuner.case import Case
from attn_tune.tuner.executor import CaseError, Executor, Interrupted
from attn_tune.tuner.plan import CasePlan, Plan
from attn_tune.tuner.progress import Event, Progress, ProgressKind
from attn_tune.tuner.protocol import ConfigRef, Finals, MeasurePolicy
from attn_tune.tuner.search import KernelSearch, Leave
from attn_tune.tuner.strategies import Strategy, exhaustive

logger = logging.getLogger(__name__)


def sweep(
    plan: Plan,
    executor: Executor,
    *,
    budget_s: float | None = None,
    stop: threading.Event | None = None,
    strategy: Strategy = exhaustive,
    policy: MeasurePolicy | None = None,
) -> Iterator[Event]:
    """Runs ``plan``, yielding each trial as it ends, and progress in between.

    The last event is always ``SWEEP_FINISHED``; its ``reason`` says why. ``budget_s`` ends the sweep after the config
    at hand; setting ``stop`` ends it at once, and only the config at hand is lost. What was yielded stands: a plan made
    with it goes on from there.

    Raises:
      ExecutorError: no worker can be started.
    """
    run = _Sweep(
        plan=plan,
        executor=executor,
        budget_s=budget_s,
        stop=stop or threading.Event(),
        strategy=strategy,
        policy=policy or MeasurePolicy(),
    )
    return run.events()


@dataclasses.dataclass
class _Sweep:
    """The state of one sweep."""

    plan: Plan
    executor: Executor
    budget_s: float | None
    stop: threading.Event
    strategy: Strategy
    policy: MeasurePolicy
    done: int = 0
    started: float = dataclasses.field(default_factory=time.monotonic)

    def events(self) -> Iterator[Event]:
        """Everything that happens, in order."""
        self.executor.interrupt = self.stop.is_set
        yield self._progress(ProgressKind.SWEEP_STARTED)
        reason = "finished"
        try:
            for case in self.plan.cases:
                yield from self._case(case)
        except (Leave, Interrupted):
            reason = "stopped" if self.stop.is_set() else "budget"
        finally:
            self._expect(())
        yield self._progress(ProgressKind.SWEEP_FINISHED, reason=reason)

    def _case(self, case_plan: CasePlan) -> Iterator[Event]:
        for kernel in case_plan.kernels:
            yield from kernel.pruned
        if case_plan.finished or not any(kernel.runnable for kernel in case_plan.kernels):
            return
        case = case_plan.case
        yield self._progress(ProgressKind.CASE_STARTED, case=case)
        planned = self.done + case_plan.todo
        remark = ""
        try:
            yield from self._searches_and_finals(case_plan)
        except CaseError as error:
            remark = str(error)
            logger.warning("%s: %s", case.label, remark)
        self.done = planned
        yield self._progress(ProgressKind.CASE_FINISHED, case=case, reason=remark)

    def _searches_and_finals(self, case_plan: CasePlan) -> Iterator[Event]:
        case, searches = case_plan.case, []
        for kernel in case_plan.kernels:
            if not kernel.runnable:
                continue
            search = KernelSearch(
                case=case,
                plan=kernel,
                device=self.plan.device,
                run=self.executor.run,
                leave=self._leave,
                policy=self.policy,
                strategy=self.strategy,
                expect=self._expect,
            )
            searches.append(search)
            yield self._progress(ProgressKind.KERNEL_STARTED, case=case, kernel=search.kernel_id)
            for trial in search.trials():
                self.done += 1
                yield trial
        self._expect(())
        yield from self._finals(case_plan, searches)

    def _finals(self, case_plan: CasePlan, searches: list[KernelSearch]) -> Iterator[Event]:
        """The last round: each kernel's heuristic and best configs, interleaved and paired."""
        if not any(search.plan.finals for search in searches):
            return
        entries = [(search, config) for search in searches for config in search.finalists()]
        if not entries:
            return
        if self._leave():
            raise Leave
        case = case_plan.case
        yield self._progress(ProgressKind.FINALS_STARTED, case=case)
        started_us = time.time_ns() // 1000
        request = Finals(
            refs=tuple(
                ConfigRef(
                    kernel=search.kernel_id,
                    signature=case.signature,
                    direction=case.direction,
                    config=config,
                )
                for search, config in entries
            ),
            device=self.plan.device,
            round_id=uuid.uuid4().hex,
            policy=self.policy,
        )
        outcomes = self.executor.finals(request).outcomes
        for (search, config), outcome in zip(entries, outcomes, strict=True):
            proven = dataclasses.replace(outcome, errors=search.errors[config_digest(config)])
            yield search.trial(WHOLE, config, proven, Stage.FINAL, started_us)

    def _expect(self, refs: Sequence[ConfigRef]) -> None:
        self.executor.expect(refs, self.plan.device)

    def _leave(self) -> bool:
        spent = time.monotonic() - self.started
        return self.stop.is_set() or (self.budget_s is not None and spent >= self.budget_s)

    def _progress(
        self, kind: ProgressKind, *, case: Case | None = None, kernel: str = "", reason: str = ""
    ) -> Progress:
        elapsed = time.monotonic() - self.started
        total = max(self.plan.counts.todo, self.done)
        return Progress(
            kind=kind,
            done=self.done,
            total=total,
            elapsed_s=elapsed,
            eta_s=elapsed / self.done * (total - self.done) if self.done else None,
            case=case,
            kernel=kernel,
            reason=reason,
        )
