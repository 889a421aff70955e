"""One case on one executor: each kernel's search, then the finals. All of a case is measured on one device."""

import dataclasses
import functools
import logging
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attn_tune.schema.config import config_digest
from attn_tune.schema.device import Device
from attn_tune.schema.trial import WHOLE, Stage, Trial
from attn_tune.tuner.plan.far_behind import fastest_known
from attn_tune.tuner.plan.plan import CasePlan, KernelPlan
from attn_tune.tuner.plan.remaining_case import remaining
from attn_tune.tuner.plan.strategies.space import Strategy
from attn_tune.tuner.protocol import ConfigRef, Finals, MeasurePolicy, Outcome
from attn_tune.tuner.run.executor import CaseError, Executor
from attn_tune.tuner.run.progress import Event, Progress, ProgressKind, ProgressMeter
from attn_tune.tuner.run.search import KernelSearch, StopSearch

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class CaseRun:
    """Runs ``plan`` on ``executor``. ``should_stop`` is asked before each config whether to stop.

    ``upcoming`` says which case is likely next: its first configs are prepared while this one has its finals. Those of
    each next kernel are prepared while the one before it is searched.

    Attributes:
      device: the device of the executor.
      meter: counts the configs of the whole sweep.
      policy: how configs are timed.
      strategy: chooses the configs.
      place: the place of the device among those of the sweep.
    """

    plan: CasePlan
    executor: Executor
    device: Device
    meter: ProgressMeter
    should_stop: Callable[[], bool]
    policy: MeasurePolicy
    strategy: Strategy
    upcoming: Callable[[], CasePlan | None] = lambda: None
    place: int = 0
    _searched: list[Trial] = dataclasses.field(default_factory=list)
    _counted: int = 0

    def events(self) -> Iterator[Event]:
        """Everything that happens, in order.

        Raises:
          StopSearch, Interrupted, ExecutorError: the case is not finished; ``rest`` is what is left of it.
        """
        plan, case = self.plan, self.plan.case
        for kernel in plan.kernels:
            yield from kernel.pruned
        if plan.is_idle:
            return
        yield self._progress(ProgressKind.CASE_STARTED)
        remark = ""
        try:
            yield from self._searches_and_finals()
        except CaseError as error:
            remark = str(error)
            logger.warning("%s: %s", case.label, remark)
        self._settle(left=0)
        yield self._progress(ProgressKind.CASE_FINISHED, reason=remark)

    def rest(self) -> CasePlan:
        """The work that is left, for another executor. Call it once, and only after ``events`` has raised."""
        rest = remaining(self.plan, self._searched)
        self._settle(left=rest.todo)
        return rest

    def _settle(self, *, left: int) -> None:
        """A case may need fewer configs than planned: the meter does not count them as done, nor as left."""
        self.meter.drop(self.plan.todo - self._counted - left)
        self._counted = self.plan.todo - left

    def _searches_and_finals(self) -> Iterator[Event]:
        searches: list[KernelSearch] = []
        runnable = [kernel for kernel in self.plan.kernels if kernel.runnable]
        for kernel, following in zip(runnable, [*runnable[1:], None], strict=True):
            search = self._search(kernel)
            search.rival_ns = min(
                (
                    *(ns for other in searches for ns in other.proven.times.values()),
                    *(fastest_known(other) for other in runnable[len(searches) + 1 :]),
                ),
                default=math.inf,
            )
            if following:
                search.after = functools.cache(self._search(following).opening)
            searches.append(search)
            yield self._progress(ProgressKind.KERNEL_STARTED, kernel=search.kernel_id)
            for trial in search.trials():
                self._counted += 1
                self.meter.advance(1)
                self._searched.append(trial)
                yield trial
        yield from self._finals(searches)

    def _search(self, kernel: KernelPlan) -> KernelSearch:
        return KernelSearch(
            plan=kernel,
            device=self.device,
            run=self.executor.run,
            should_stop=self.should_stop,
            policy=self.policy,
            strategy=self.strategy,
            expect=self._expect,
        )

    def _opening(self) -> list[ConfigRef]:
        """The configs that the next case begins with."""
        plan = self.upcoming()
        if plan is None:
            return []
        return [ref for kernel in plan.kernels if kernel.runnable for ref in self._search(kernel).opening()]

    def _finals(self, searches: list[KernelSearch]) -> Iterator[Event]:
        """The last round: each kernel's heuristic and best configs, interleaved and paired."""
        entries = []
        if any(search.plan.finals for search in searches):
            entries = [(search, config) for search in searches for config in search.finalists()]
        refs = tuple(search.plan.ref(WHOLE, config) for search, config in entries)
        self._expect([*refs, *self._opening()])
        if not refs:
            return
        if self.should_stop():
            raise StopSearch
        yield self._progress(ProgressKind.FINALS_STARTED)
        started_us = time.time_ns() // 1000
        times = [search.nanoseconds_of(config) for search, config in entries]
        request = Finals(
            twin=times.index(min(times)),
            refs=refs,
            device=self.device,
            round_id=uuid.uuid4().hex,
            policy=self.policy,
        )
        answer = self.executor.finals(request)
        for place, outcome in enumerate(answer.outcomes):
            search, config = entries[place]
            outcome = _with_search(search, config, outcome)
            yield search.trial(WHOLE, config, outcome, Stage.FINAL, started_us)
            if answer.twin and outcome.measurement and place == request.twin:
                again = dataclasses.replace(outcome, measurement=answer.twin)
                yield search.trial(WHOLE, config, again, Stage.FINAL, started_us)

    def _progress(self, kind: ProgressKind, **more: str) -> Progress:
        return self.meter.progress(kind, case=self.plan.case, place=self.place, **more)

    def _expect(self, refs: Sequence[ConfigRef]) -> None:
        self.executor.expect(refs, self.device)


def _with_search(search: KernelSearch, config: Mapping[str, Any], outcome: Outcome) -> Outcome:
    """The outcome of a config in the finals, completed with the findings of its search."""
    digest = config_digest(config)
    if digest in search.wavering:
        outcome = dataclasses.replace(outcome, repeatable=False)
    if outcome.status.is_measured:
        # Found right by two inputs and on feature problems, which says more than one input more.
        outcome = dataclasses.replace(outcome, errors=search.errors[digest], features=search.features[digest])
    return search.plan.permitted(outcome)
