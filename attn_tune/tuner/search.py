"""The search of one kernel on one case: heuristic first, then each part, then the parts' winners put together."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attn_tune.schema.config import config_digest
from attn_tune.schema.device import Device
from attn_tune.schema.trial import WHOLE, OutputError, Stage, Status, Trial
from attn_tune.tuner.case import Case
from attn_tune.tuner.plan import KernelPlan, PartPlan
from attn_tune.tuner.protocol import ConfigRef, MeasurePolicy, Outcome, Run
from attn_tune.tuner.strategies import Strategy

# How many proven configs (right on the case and on the battery) of a kernel go to the finals besides the heuristic's.
FINALISTS = 2


class Leave(Exception):
    """The search is to end before its next config."""


@dataclass
class Tally:
    """What is known of one part: configs and their median times, the fastest first."""

    times: dict[str, float] = field(default_factory=dict)
    configs: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def add(self, config: Mapping[str, Any], median_ns: float) -> None:
        """Notes a right config; of two times the lower one stays."""
        digest = config_digest(config)
        self.configs[digest] = config
        self.times[digest] = min(median_ns, self.times.get(digest, math.inf))

    def best(self, count: int) -> list[Mapping[str, Any]]:
        """The fastest ``count`` configs."""
        order = sorted(self.times, key=lambda digest: (self.times[digest], digest))
        return [self.configs[digest] for digest in order[:count]]

    def time_of_place(self, place: int) -> float:
        """The ``place``-th best time; infinite when there are fewer."""
        times = sorted(self.times.values())
        return times[place - 1] if len(times) >= place else math.inf


@dataclass
class KernelSearch:
    """Searches one kernel on one case. After ``trials`` is exhausted, ``finalists`` are known.

    ``run`` executes a request; ``leave`` is asked before each config whether to stop; ``expect`` is told at the start
    which configs will come, for who can prepare for them. The battery costs several
    compiles, so only the heuristic and a config faster than every one before it must pass it: ``proven`` are those.
    The fastest of ``whole`` is therefore always a proven one.
    """

    case: Case
    plan: KernelPlan
    device: Device
    run: Callable[[Run], Outcome]
    leave: Callable[[], bool]
    policy: MeasurePolicy
    strategy: Strategy
    expect: Callable[[Sequence[ConfigRef]], object] = lambda refs: None
    whole: Tally = field(default_factory=Tally)
    proven: Tally = field(default_factory=Tally)
    tried_whole: set[str] = field(default_factory=set)
    errors: dict[str, tuple[OutputError, ...]] = field(default_factory=dict)

    @property
    def kernel_id(self) -> str:
        """``"op/name"``."""
        return self.plan.kernel.id

    def trials(self) -> Iterator[Trial]:
        """Every trial, as it ends. A config whose part or whole was tried in an earlier run is not tried again.

        Raises:
          Leave: ``leave()`` is true.
        """
        parts = {part.part: Tally() for part in self.plan.parts}
        self.tried_whole |= self.plan.failed
        for trial in sorted(self.plan.known, key=lambda trial: trial.started_us):
            assert trial.measurement is not None
            if trial.part == WHOLE:
                self.tried_whole.add(trial.config_digest)
                self._keep(trial)
            elif trial.part in parts:
                parts[trial.part].add(trial.config, trial.measurement.median_ns)
        self.expect(self._coming())
        if self.plan.finals:
            yield from self._try_whole(self.plan.heuristic)
        for part in self.plan.parts:
            if part.part == WHOLE:
                yield from self._search_whole(part)
            else:
                yield from self._search_part(part, parts[part.part])
        if WHOLE not in parts and all(tally.times for tally in parts.values()):
            yield from self._try_whole(self._compose(parts))

    def finalists(self) -> list[Mapping[str, Any]]:
        """The heuristic's config, if it is right, and the fastest proven ones."""
        first = config_digest(self.plan.heuristic)
        chosen = [self.plan.heuristic] if first in self.proven.times else []
        rest = [c for c in self.proven.best(FINALISTS + 1) if config_digest(c) != first]
        return chosen + rest[:FINALISTS]

    def _coming(self) -> list[ConfigRef]:
        """What is known to be tried, if the strategy tries it all, in the order given."""
        coming = [(part.part, c) for part in self.plan.parts for c in part.candidates]
        if self.plan.finals:
            coming.insert(0, (WHOLE, self.plan.heuristic))
        refs = {(part, config_digest(c)): self._ref(part, c) for part, c in coming}
        return [
            ref for (part, digest), ref in refs.items() if part or digest not in self.tried_whole
        ]

    def _search_whole(self, part: PartPlan) -> Iterator[Trial]:
        search = self.strategy(part.candidates)
        candidate = next(search, None)
        while candidate is not None:
            yield from self._try_whole(candidate)
            seen = self.whole.times.get(config_digest(candidate), math.inf)
            candidate = _send(search, seen)

    def _search_part(self, part: PartPlan, tally: Tally) -> Iterator[Trial]:
        search = self.strategy(part.candidates)
        candidate = next(search, None)
        while candidate is not None:
            trial = self._attempt(part.part, candidate, tally.time_of_place(1), battery_below=0.0)
            seen = math.inf
            if trial.measurement is not None:
                seen = trial.measurement.median_ns
                tally.add(candidate, seen)
            yield trial
            candidate = _send(search, seen)

    def _try_whole(self, config: Mapping[str, Any]) -> Iterator[Trial]:
        """A whole config that was not tried before. It must pass the battery too if it is the fastest so far."""
        digest = config_digest(config)
        if digest in self.tried_whole:
            return
        self.tried_whole.add(digest)
        is_heuristic = digest == config_digest(self.plan.heuristic)
        best_ns = self.whole.time_of_place(1)
        below = math.inf if is_heuristic else best_ns
        trial = self._attempt(WHOLE, config, best_ns, battery_below=below)
        self._keep(trial)
        yield trial

    def _keep(self, trial: Trial) -> None:
        """Notes a right whole config. Trials that are kept in order of time tell who had to pass the battery."""
        if trial.measurement is None:
            return
        median_ns = trial.measurement.median_ns
        is_new_best = median_ns < self.whole.time_of_place(1)
        if trial.is_heuristic or is_new_best or trial.config_digest in self.proven.times:
            self.proven.add(trial.config, median_ns)
        self.whole.add(trial.config, median_ns)
        self.errors[trial.config_digest] = trial.errors

    def _compose(self, parts: Mapping[str, Tally]) -> Mapping[str, Any]:
        return {**self.plan.heuristic, **{name: t.best(1)[0] for name, t in parts.items()}}

    def _attempt(
        self, part: str, config: Mapping[str, Any], best_ns: float, *, battery_below: float
    ) -> Trial:
        if self.leave():
            raise Leave
        started_us = time.time_ns() // 1000
        outcome = self.run(
            Run(
                ref=self._ref(part, config),
                device=self.device,
                policy=self.policy,
                best_ns=None if math.isinf(best_ns) else best_ns,
                battery_below_ns=battery_below,
            )
        )
        return self.trial(part, config, outcome, Stage.SEARCH, started_us)

    def _ref(self, part: str, config: Mapping[str, Any]) -> ConfigRef:
        """A whole config, or one of a part with the heuristic's for the others."""
        return ConfigRef(
            kernel=self.kernel_id,
            signature=self.case.signature,
            direction=self.case.direction,
            config=config if part == WHOLE else {**self.plan.heuristic, part: config},
            part=part,
        )

    def trial(
        self,
        part: str,
        config: Mapping[str, Any],
        outcome: Outcome,
        stage: Stage,
        started_us: int,
    ) -> Trial:
        """The trial of an outcome."""
        base = self.plan.heuristic if part == WHOLE else self.plan.heuristic[part]
        return Trial(
            kernel=self.kernel_id,
            direction=self.case.direction,
            signature=self.case.signature,
            device=self.device,
            environment=self.plan.environment,
            config=config,
            part=part,
            stage=stage,
            status=outcome.status,
            reason=outcome.reason or _unsaid(outcome.status),
            errors=outcome.errors,
            measurement=outcome.measurement,
            resources=outcome.resources,
            compile_ms=outcome.compile_ms,
            is_heuristic=config_digest(config) == config_digest(base),
            started_us=started_us,
        )


def _send(search, seen: float) -> Mapping[str, Any] | None:
    try:
        return search.send(seen)
    except StopIteration:
        return None


def _unsaid(status: Status) -> str:
    return "" if status is Status.OK else f"{status} for no stated reason"
