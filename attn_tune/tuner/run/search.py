"""The search of one kernel on one case.

The heuristic first, then each part, then the parts' winners put together; at the end the feature problems, for the
fastest.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attn_tune.schema.config import config_digest
from attn_tune.schema.device import Device
from attn_tune.schema.trial import WHOLE, OutputError, Stage, Status, Trial, lacks_a_library
from attn_tune.tuner.plan.dominance import Exhausted
from attn_tune.tuner.plan.far_behind import is_far_behind
from attn_tune.tuner.plan.plan import KernelPlan, PartPlan
from attn_tune.tuner.plan.small_problems import described, features_for, unproven
from attn_tune.tuner.plan.strategies.space import Batch, Prior, Space, Strategy, send
from attn_tune.tuner.protocol import (
    FEATURE_SEEDS,
    ConfigRef,
    MeasurePolicy,
    Outcome,
    Phase,
    Run,
)
from attn_tune.tuner.run.finalists import MOST_FINALISTS, compose, places
from attn_tune.tuner.run.search_results import PartResults, Programs

_MOST_HINTS = 32


class StopSearch(Exception):
    """The search is to end before its next config."""


@dataclass
class KernelSearch:
    """Searches one kernel on one case. After ``trials`` is exhausted, ``finalists`` are known.

    The feature problems cost several compiles: only the heuristic and, at the end, the fastest must pass.
    A config that could run none of them is ``unproven``, and goes no further unless the plan allows it.

    Attributes:
      plan: the kernel, its case and the parts to search.
      device: the device that it runs on.
      run: executes a request.
      should_stop: asked before each config whether the search is to end.
      policy: numbers of samples.
      strategy: the order in which candidates are tried.
      expect: gets the configs that will come, so that an executor can prepare for them.
      rival_ns: the time of the fastest proven config of another kernel on the case, in nanoseconds.
      after: what comes when this search has ended; passed to ``expect`` behind its own configs.
      whole: times of whole configs that are right on the case.
      proven: those of them that passed the feature problems.
      tried_whole: digests of the configs that were tried as a whole.
      errors: errors of the outputs on the case, by digest of the config.
      timed: the trial of the case itself, by digest of the config.
      features: the number of feature problems that a config ran, by its digest.
      expected: the configs that were last passed to ``expect``.
      exhausted: configs that ran out of a resource, by part.
      programs: programs that were tried, by part.
      hints: what a strategy may ask for next, by part.
      wavering: digests of configs whose bits differed on the feature problems from run to run.
    """

    plan: KernelPlan
    device: Device
    run: Callable[[Run], Outcome]
    should_stop: Callable[[], bool]
    policy: MeasurePolicy
    strategy: Strategy
    expect: Callable[[Sequence[ConfigRef]], object] = lambda refs: None
    rival_ns: float = math.inf
    after: Callable[[], Sequence[ConfigRef]] = tuple
    whole: PartResults = field(default_factory=PartResults)
    proven: PartResults = field(default_factory=PartResults)
    tried_whole: set[str] = field(default_factory=set)
    errors: dict[str, tuple[OutputError, ...]] = field(default_factory=dict)
    timed: dict[str, Trial] = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=dict)
    expected: list[ConfigRef] = field(default_factory=list)
    exhausted: dict[str, Exhausted] = field(default_factory=dict)
    programs: dict[str, Programs] = field(default_factory=dict)
    hints: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    wavering: set[str] = field(default_factory=set)

    @property
    def kernel_id(self) -> str:
        """``"op/name"``."""
        return self.plan.kernel.id

    def trials(self) -> Iterator[Trial]:
        """Every trial, as it ends. A config whose part or whole was tried in an earlier run is not tried again.

        Raises:
          StopSearch: ``should_stop()`` is true.
        """
        parts = {part.part: PartResults() for part in self.plan.parts}
        self.tried_whole |= self.plan.failed
        for trial in sorted(self.plan.known, key=lambda trial: trial.started_us):
            assert trial.measurement is not None
            if trial.part == WHOLE:
                self.tried_whole.add(trial.config_digest)
                # One may be right on the case and have failed on a feature problem later.
                if trial.config_digest not in self.plan.failed:
                    self._keep(trial)
            elif trial.part in parts:
                parts[trial.part].add(trial.config, trial.measurement.median_ns)
        self._expect(self._coming())
        if self.plan.finals:
            # Its feature problems too: the device would wait for the first candidates to be compiled.
            for trial in self._open():
                yield trial
                if lacks_a_library(trial.status, trial.reason):
                    # Every other config would fail alike, each with the time of a compile.
                    return
        for part in self.plan.parts:
            if part.part == WHOLE:
                yield from self._search_whole(part)
            else:
                yield from self._search_part(part, parts[part.part])
        if WHOLE not in parts and all(results.times for results in parts.values()):
            composed = compose(parts, self.plan.heuristic)
            whole = self._refs([(WHOLE, config) for config in composed])
            self._expect(whole + self._feature_refs(composed))
            for config in composed:
                yield from self._try_whole(config)
        # What is far behind takes no place in the finals but the untuned config's.
        if self.plan.finals and not self.is_far_behind:
            yield from self._prove_fastest()

    def _open(self) -> Iterator[Trial]:
        """The untuned config, on the case and on the feature problems."""
        yield from self._try_whole(self.plan.heuristic)
        if config_digest(self.plan.heuristic) in self.whole.times:
            yield from self._prove(self.plan.heuristic)

    def finalists(self) -> list[Mapping[str, Any]]:
        """The heuristic's config, if it is right, and the fastest proven ones."""
        first = config_digest(self.plan.heuristic)
        chosen = [self.plan.heuristic] if first in self.proven.times else []
        rest = [c for c in self.proven.best(MOST_FINALISTS + 1) if config_digest(c) != first]
        return chosen + rest[: self._places(rest)]

    def _places(self, ranking: Sequence[Mapping[str, Any]]) -> int:
        """The number of ``ranking``, the fastest first, that deserve a place in the finals."""
        times = [self.whole.times[config_digest(config)] for config in ranking]
        return places(times)

    def nanoseconds_of(self, config: Mapping[str, Any]) -> float:
        """The time that the search saw of a right whole config."""
        return self.whole.times[config_digest(config)]

    @property
    def is_far_behind(self) -> bool:
        """Whether the rest of the kernel's configs is left out; see ``plan.far_behind``."""
        return not self.plan.tries_all and is_far_behind(self.whole.times.values(), self.rival_ns)

    def opening(self) -> list[ConfigRef]:
        """First configs of the search: for preparing while another case has its finals. Nothing is run."""
        coming = self._coming()
        for part in self.plan.parts[:1]:
            if part.todo < len(part.candidates):
                batch = next(self.strategy(self._space(part)), None) or ()
                coming += self._coming_next(part, batch)
        return list({ref.key: ref for ref in coming}.values())

    def _coming(self) -> list[ConfigRef]:
        """The configs that are tried before the strategy chooses any, in the order given."""
        coming = self._refs(_tried_in_full(self.plan.parts))
        if not self.plan.finals:
            return coming
        first = self._refs([(WHOLE, self.plan.heuristic)])
        small = self._feature_refs([self.plan.heuristic])
        return [*first, *small, *(ref for ref in coming if ref not in first)]

    def _coming_next(self, part: PartPlan, batch: Batch) -> list[ConfigRef]:
        """The batch, then what is known to be tried in later parts, then what the strategy may ask for."""
        later = self.plan.parts[self.plan.parts.index(part) + 1 :]
        batch = self._exhausted(part.part).without_ruled_out(batch)
        now = [(part.part, c) for c in batch if config_digest(c) not in part.tried]
        maybe = [(part.part, c) for c in self.hints.get(part.part, ())]
        return self._refs([*now, *_tried_in_full(later), *maybe])

    def _expect(self, coming: list[ConfigRef]) -> None:
        """Pass ``coming`` to ``expect``, unless it was passed last: preparing would begin again."""
        if coming and coming != self.expected[-len(coming) :]:
            self.expect([*coming, *self.after()])
            self.expected = coming

    def _refs(self, coming: Sequence[tuple[str, Mapping[str, Any]]]) -> list[ConfigRef]:
        refs = {(part, config_digest(c)): self.plan.ref(part, c) for part, c in coming}
        return [ref for (part, digest), ref in refs.items() if part or digest not in self.tried_whole]

    def _search_whole(self, part: PartPlan) -> Iterator[Trial]:
        return self._search(part, self.whole, self._try_whole)

    def _search_part(self, part: PartPlan, results: PartResults) -> Iterator[Trial]:
        def attempt(candidate: Mapping[str, Any]) -> Iterator[Trial]:
            trial = self._attempt(part.part, candidate, results.time_of_place(1))
            if trial.measurement is not None:
                results.add(candidate, trial.measurement.median_ns)
            yield trial

        return self._search(part, results, attempt)

    def _search(
        self,
        part: PartPlan,
        results: PartResults,
        attempt: Callable[[Mapping[str, Any]], Iterator[Trial]],
    ) -> Iterator[Trial]:
        """Run what the strategy asks for, batch by batch; what was tried before is answered from what was seen."""
        search = self.strategy(self._space(part))
        batch = next(search, None)
        while batch is not None:
            self._expect(self._coming_next(part, batch))
            times = []
            for place, candidate in enumerate(batch):
                digest = config_digest(candidate)
                ruled_out = len(self._exhausted(part.part).known)
                if digest not in part.tried:
                    if part.part == WHOLE and self.is_far_behind:
                        return
                    yield from attempt(candidate)
                if len(self._exhausted(part.part).known) > ruled_out:
                    # What cannot fit either need not be compiled ahead.
                    self._expect(self._coming_next(part, batch[place + 1 :]))
                seen = self._programs(part.part).twin_of(digest)
                times.append(part.tried.get(seen, results.times.get(seen, math.inf)))
            batch = send(search, tuple(times))

    def _space(self, part: PartPlan) -> Space:
        return self.plan.space(
            part,
            tried=part.tried,
            limit=part.todo,
            prior=self.plan.prior(part.part) if part.todo else Prior(),
            hint=functools.partial(self._hint, part.part),
        )

    def _hint(self, part: str, configs: Sequence[Mapping[str, Any]]) -> None:
        """Note what may come; what was thought so before stays a while, for much of it is prepared."""
        newest_first = {config_digest(c): c for c in (*configs, *self.hints.get(part, ()))}
        self.hints[part] = list(newest_first.values())[:_MOST_HINTS]

    def _try_whole(self, config: Mapping[str, Any]) -> Iterator[Trial]:
        """A whole config that was not tried before."""
        digest = config_digest(config)
        if digest in self.tried_whole:
            return
        self.tried_whole.add(digest)
        trial = self._attempt(WHOLE, config, self.whole.time_of_place(1))
        self._keep(trial)
        yield trial

    def _keep(self, trial: Trial) -> None:
        """Note a right whole config."""
        if trial.measurement is None:
            return
        self.whole.add(trial.config, trial.measurement.median_ns)
        self.errors[trial.config_digest] = trial.errors
        self.timed[trial.config_digest] = trial

    def _prove_fastest(self) -> Iterator[Trial]:
        """Run the fastest on the feature problems, until enough have passed. What fails is a trial.

        Raises:
          StopSearch: ``should_stop()`` is true.
        """
        first = config_digest(self.plan.heuristic)
        ranking = [c for c in self.whole.best(len(self.whole.times)) if config_digest(c) != first]
        self._expect(self._feature_refs(ranking[: self._places(ranking)]))
        passed: list[Mapping[str, Any]] = []
        for place, config in enumerate(ranking):
            # Who fails leaves its place to the next, and may have been what the others were close to.
            if len(passed) >= self._places([*passed, *ranking[place:]]):
                return
            yield from self._prove(config)
            if config_digest(config) in self.proven.times:
                passed.append(config)

    def _prove(self, config: Mapping[str, Any]) -> Iterator[Trial]:
        digest, started_us = config_digest(config), time.time_ns() // 1000
        passed, failed = self._on_features(config)
        if failed is None and (passed or self.plan.allow_unproven):
            self.features[digest] = passed
            self.proven.add(config, self.whole.times[digest])
            return
        del self.whole.times[digest]
        before = self.timed[digest]
        if failed is None and before.status is not Status.UNPROVEN:
            failed = unproven(before)
        if failed is not None:
            yield self.trial(WHOLE, config, failed, Stage.SEARCH, started_us)

    def _feature_refs(self, configs: Sequence[Mapping[str, Any]]) -> list[ConfigRef]:
        """Each config on each feature problem of the op, made coarser where it cannot take it as it is."""
        case, spec = self.plan.case, self.plan.kernel
        problem = case.op.from_signature(case.signature)
        return [
            dataclasses.replace(self.plan.ref(WHOLE, used), problem=small)
            for config in configs
            for small, used in features_for(case.op, spec, case.direction, self.device, problem, config)
        ]

    def _on_features(self, config: Mapping[str, Any]) -> tuple[int, Outcome | None]:
        """The number of feature problems that the config ran and passed, and the outcome of the first failure, or None.

        Raises:
          StopSearch: ``should_stop()`` is true.
        """
        passed = 0
        for ref in self._feature_refs([config]):
            if self.should_stop():
                raise StopSearch
            request = Run(ref=ref, device=self.device, measure=False, seeds=FEATURE_SEEDS)
            outcome = self.plan.permitted(self.run(request))
            if outcome.repeatable is False:
                self.wavering.add(config_digest(config))
            elif outcome.status.does_not_fit:  # which says nothing about right or wrong
                continue
            if outcome.status.is_measured:
                passed += 1
                continue
            where = f"on the feature problem {described(self.plan.case.op, ref.problem)}"
            return passed, dataclasses.replace(outcome, reason=f"{where}: {outcome.reason}")
        return passed, None

    def _attempt(self, part: str, config: Mapping[str, Any], best_ns: float) -> Trial:
        if self.should_stop():
            raise StopSearch
        started_us = time.time_ns() // 1000
        if ruled_out := self._exhausted(part).ruled_out(config):
            outcome = Outcome(status=Status.OUT_OF_RESOURCES, reason=ruled_out.reason)
            return self.trial(part, config, outcome, Stage.SEARCH, started_us)
        programs = self._programs(part)
        request = Run(
            ref=self.plan.ref(part, config),
            device=self.device,
            policy=self.policy,
            best_ns=None if math.isinf(best_ns) else best_ns,
            tried=programs.names,
        )
        outcome = self.plan.permitted(self.run(request))
        programs.add(config, outcome.resources.code_digest)
        if outcome.status is Status.OUT_OF_RESOURCES:
            self._exhausted(part).add(config, f"for which: {outcome.reason}")
        return self.trial(part, config, outcome, Stage.SEARCH, started_us)

    def _exhausted(self, part: str) -> Exhausted:
        grows = self.plan.kernel.searches[self.plan.case.direction].grows
        return self.exhausted.setdefault(part, Exhausted(grows))

    def _programs(self, part: str) -> Programs:
        return self.programs.setdefault(part, Programs())

    def trial(
        self,
        part: str,
        config: Mapping[str, Any],
        outcome: Outcome,
        stage: Stage,
        started_us: int,
    ) -> Trial:
        """The trial of an outcome."""
        return self.plan.trial(
            part,
            config,
            device=self.device,
            started_us=started_us,
            stage=stage,
            status=outcome.status,
            reason=outcome.reason or _unsaid(outcome.status),
            errors=outcome.errors,
            measurement=outcome.measurement,
            resources=outcome.resources,
            conditions=outcome.conditions,
            compile_ms=outcome.compile_ms,
            prove_ms=outcome.phases_ms.get(Phase.VALIDATE),
            run_ms=outcome.phases_ms.get(Phase.MEASURE),
            is_heuristic=self.plan.is_heuristic(part, config),
            repeatable=outcome.repeatable,
            features=outcome.features,
        )


def _tried_in_full(parts: Sequence[PartPlan]) -> list[tuple[str, Mapping[str, Any]]]:
    """Configs of the parts of which none is left out."""
    return [(p.part, c) for p in parts if p.todo >= len(p.candidates) for c in p.candidates]


def _unsaid(status: Status) -> str:
    return "" if status.is_fine else f"{status} for no stated reason"
