"""The loop of a sweep that only compiles: the result of every candidate, with a predicted time where there is one."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from attn_tune.ops.contract import load
from attn_tune.schema.config import config_digest, config_to_json
from attn_tune.schema.trial import WHOLE, Prediction, Status, Trial
from attn_tune.tuner.offline.compilers.pool import CompilePool
from attn_tune.tuner.offline.compilers.protocol import Compiled
from attn_tune.tuner.offline.oversized import Oversized
from attn_tune.tuner.offline.predict.model import predict
from attn_tune.tuner.plan.case import Case
from attn_tune.tuner.plan.plan import CasePlan, KernelPlan, PartPlan, Plan
from attn_tune.tuner.plan.strategies.exhaustive import exhaustive
from attn_tune.tuner.plan.strategies.space import PastCase, Prior, Strategy, send
from attn_tune.tuner.protocol import ConfigRef
from attn_tune.tuner.run.progress import Event, ProgressKind, ProgressMeter

# In a prediction's terms: the program around the launches was compiled too.
_WHOLE_PROGRAM = "whole_program"
_WHOLE_LIMIT_S = 120.0
# Parts that are predicted this close to the best one may be as good; their composition is compiled too.
_RUNNERS_UP = 1
# What part of a later case's search may be of configs whose schedules an earlier one made: they cost a hundredth of a
# compile.
_KNOWN_SHARE = 4 / 5

type Config = Mapping[str, Any]
type Past = Callable[[KernelPlan, Case], "Mapping[tuple[str, str], Trial]"]


def sweep_target(
    plan: Plan,
    pool: CompilePool,
    *,
    strategy: Strategy = exhaustive,
    past: Past = lambda kernel, case: {},
    budget_s: float | None = None,
    stop: threading.Event | None = None,
) -> Iterator[Event]:
    """Compile the candidates of ``plan`` in ``pool``, yielding each trial as it ends, and progress in between.

    Strategies see predicted times in the place of measured ones. A direction of several launches also has its predicted
    best parts compiled together. Launches are compiled alone; of each kernel the config that is predicted best is then
    compiled with the program around it, and is replaced by the next one where that fails. The last event
    is ``SWEEP_FINISHED``, as in ``attn_tune.tuner.run.sweep``.

    Args:
      past: trials of an earlier run that have a prediction, by (part, config digest).

    Raises:
      CompilerError: nothing can be compiled.
    """
    run = _TargetSweep(
        plan=plan,
        pool=pool,
        strategy=strategy,
        past=past,
        budget_s=budget_s,
        stop=stop or threading.Event(),
    )
    return run.events()


class _StopSweep(Exception):
    """Raised to end the sweep before its next config."""


@dataclass
class _TargetSweep:
    plan: Plan
    pool: CompilePool
    strategy: Strategy
    past: Past
    budget_s: float | None
    stop: threading.Event
    meter: ProgressMeter = field(init=False)
    # What is predicted on the cases before, by kernel, direction and part: where the next search may begin.
    seen: dict[tuple[str, str, str], list[PastCase]] = field(default_factory=dict)

    # Kernels and directions whose whole programs take too long to compile.
    slow: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self):
        cases = sum(any(kernel.runnable for kernel in case.kernels) for case in self.plan.cases)
        self.meter = ProgressMeter(todo=self.plan.counts.todo, cases=cases, platform=self.plan.device.platform)

    def events(self) -> Iterator[Event]:
        yield self.meter.progress(ProgressKind.SWEEP_STARTED)
        reason = "finished"
        try:
            for planned in self.plan.cases:
                yield from self._case(planned)
        except _StopSweep:
            reason = "stopped" if self.stop.is_set() else "budget"
        yield self.meter.progress(ProgressKind.SWEEP_FINISHED, reason=reason)

    def _case(self, planned: CasePlan) -> Iterator[Event]:
        for kernel in planned.kernels:
            yield from kernel.pruned
        runnable = [kernel for kernel in planned.kernels if kernel.runnable]
        if not runnable:
            return
        yield self.meter.progress(ProgressKind.CASE_STARTED, case=planned.case)
        for kernel in runnable:
            yield self.meter.progress(ProgressKind.KERNEL_STARTED, case=planned.case, kernel=kernel.kernel.id)
            search = _KernelCompile(kernel, self)
            counted = 0
            for trial in search.trials():
                counted += 1
                self.meter.advance(1)
                yield trial
            self.meter.drop(kernel.todo - counted)
        yield self.meter.progress(ProgressKind.CASE_FINISHED, case=planned.case)

    def should_stop(self) -> bool:
        late = self.budget_s is not None and self.meter.elapsed_s >= self.budget_s
        return late or self.stop.is_set()


@dataclass
class _KernelCompile:
    """The candidates of one kernel on one case."""

    plan: KernelPlan
    sweep: _TargetSweep
    times: dict[str, dict[str, float]] = field(default_factory=dict)
    configs: dict[str, Config] = field(default_factory=dict)
    # What did not fit, by part, over all batches of its search.
    oversized: dict[str, Oversized] = field(default_factory=dict)
    # Of whole configs, the last trial that has a prediction.
    predicted: dict[str, Trial] = field(default_factory=dict)

    def __post_init__(self):
        self.case = self.plan.case
        op = self.case.op
        self.problem = op.from_signature(self.case.signature)
        self.walk: Any = load(op.walk) if op.walk else None

    def trials(self) -> Iterator[Trial]:
        """Every trial, as it ends.

        Raises:
          _StopSweep: the sweep is to stop.
        """
        for (part, digest), trial in self.sweep.past(self.plan, self.case).items():
            assert trial.prediction is not None
            self.times.setdefault(part, {})[digest] = trial.prediction.ns
            if part == WHOLE:
                self.predicted[digest] = trial
        tried = set(self.times.get(WHOLE, ())) | self.plan.failed
        if self._has_parts:
            yield from self._compile(WHOLE, [self.plan.heuristic], tried)
        for part in self.plan.parts:
            yield from self._search(part)
        if self._has_parts:
            yield from self._compile(WHOLE, [*self._default(), *self._composed()], tried)
        yield from self._confirm()

    def _confirm(self) -> Iterator[Trial]:
        """Compile the whole program of the config that is predicted best, and of the next where that one fails.

        Not for a kernel whose whole program took too long on a case before.
        """
        if (self.plan.kernel.id, self.case.direction) in self.sweep.slow:
            return
        for digest, trial in sorted(self.predicted.items(), key=lambda item: _place(item[1])):
            assert trial.prediction is not None
            if _WHOLE_PROGRAM in trial.prediction.terms:
                return
            ref, started = self.plan.ref(WHOLE, trial.config), time.time_ns() // 1000
            pool, should_stop = self.sweep.pool, self.sweep.should_stop
            answers = list(pool.compile([ref], should_stop=should_stop, whole=True, limit_s=_WHOLE_LIMIT_S))
            if not answers:
                raise _StopSweep
            ((_, compiled),) = answers
            if compiled.status is Status.TIMED_OUT:
                # XLA takes minutes for some, which says nothing against them; what their launches say still holds.
                self.sweep.slow.add((self.plan.kernel.id, self.case.direction))
                return
            again = _after_whole(trial, compiled, started)
            if again.prediction is None:
                del self.predicted[digest]
            yield again
            if again.prediction is not None:
                return

    def _search(self, part: PartPlan) -> Iterator[Trial]:
        seen = self.times.setdefault(part.part, {})
        tried = {digest: seen.get(digest, math.inf) for digest in part.tried}
        self.configs.update({config_digest(config): config for config in part.space})
        known: list[Config] = []
        if part.todo:
            yield from self._begin_with(part, self._default_blocks(part), tried)
            known = self._known(part, tried)
            yield from self._begin_with(part, known, tried)
        search = self.sweep.strategy(
            self.plan.space(
                part,
                tried=tried,
                limit=part.todo - len(known),
                prior=Prior(cases=tuple(self.sweep.seen.get(self._key(part.part), ()))),
            )
        )
        batch = next(search, None)
        while batch is not None:
            yield from self._compile(part.part, batch, set(tried))
            answer = tuple(seen.get(config_digest(c), math.inf) for c in batch)
            batch = send(search, answer)
        times = {d: ns for d, ns in seen.items() if d in self.configs}
        past = PastCase(signature=self.case.signature, times=times)
        self.sweep.seen.setdefault(self._key(part.part), []).append(past)

    def _begin_with(self, part: PartPlan, configs: list[Config], tried: dict[str, float]) -> Iterator[Trial]:
        """Compile ``configs`` before any strategy is asked; ``tried`` then holds them too."""
        yield from self._compile(part.part, configs, set(tried))
        tried |= {config_digest(config): self._ns(part.part, config) for config in configs}

    def _known(self, part: PartPlan, tried: Mapping[str, float]) -> list[Config]:
        """The candidates that did best on earlier cases; none that had a single block there."""
        candidates = {config_digest(c): c for c in part.space if config_digest(c) not in tried}
        ratios: dict[str, float] = {}
        for case in self.sweep.seen.get(self._key(part.part), ()):
            problem = self.case.op.from_signature(case.signature)
            for digest in candidates.keys() & case.ratios.keys():
                if self.walk is None or not self.walk.has_single_block(candidates[digest], problem):
                    ratios[digest] = min(case.ratios[digest], ratios.get(digest, math.inf))
        finite = [digest for digest, ratio in ratios.items() if math.isfinite(ratio)]
        best = sorted(finite, key=lambda d: (ratios[d], d))[: int(part.todo * _KNOWN_SHARE)]
        # Not the best first: a strategy that sees nothing get better would end.
        return [candidates[digest] for digest in candidates if digest in best]

    def _key(self, part: str) -> tuple[str, str, str]:
        return self.plan.kernel.id, self.case.direction, part

    def _ns(self, part: str, config: Config) -> float:
        return self.times.get(part, {}).get(config_digest(config), math.inf)

    def _default(self) -> list[Config]:
        """All parts with default blocks, if they are among the candidates."""
        found = {part.part: config for part in self.plan.parts for config in self._default_blocks(part)}
        return [{**self.plan.heuristic, **found}] if len(found) == len(self.plan.parts) else []

    def _default_blocks(self, part: PartPlan) -> list[Config]:
        """The candidate with default blocks, if there is one: what every prediction is compared with."""
        found = [c for c in part.space if self.walk is not None and self.walk.is_default(c)]
        return sorted(found, key=config_to_json)[:1]

    def _composed(self) -> list[Config]:
        """The parts that are predicted best, together, and for each part with its runner-up."""
        best, runners = dict(self.plan.heuristic), []
        for part in self.plan.parts:
            times = self.times.get(part.part, {})
            order = sorted((ns, digest) for digest, ns in times.items() if digest in self.configs)
            finite = [digest for ns, digest in order if math.isfinite(ns)]
            if not finite:
                return []
            best[part.part] = self.configs[finite[0]]
            runners += [(part.part, self.configs[d]) for d in finite[1 : 1 + _RUNNERS_UP]]
        return [best, *({**best, part: config} for part, config in runners)]

    def _compile(self, part: str, configs: Any, tried: set[str]) -> Iterator[Trial]:
        """Compile the configs that were not tried, small ones first, so that misfits are known early.

        Large ones first where as many as these have all fitted: the last to end holds up the next batch.
        """
        todo = {config_digest(c): c for c in configs if config_digest(c) not in tried}
        oversized = self._oversized_of(part)
        all_fit = not oversized.known and len(self.times.get(part, ())) >= len(todo)
        order = sorted(todo.values(), key=oversized.size, reverse=all_fit)
        refs = [self.plan.ref(part, config) for config in order]
        started: dict[Any, int] = {}

        def skip(ref: ConfigRef) -> Compiled | None:
            started[ref.key] = time.time_ns() // 1000
            return oversized.answer(ref.part_config)

        if self.sweep.should_stop():
            raise _StopSweep
        answered = 0
        for index, compiled in self.sweep.pool.compile(refs, skip=skip, should_stop=self.sweep.should_stop):
            answered += 1
            config = order[index]
            if not compiled.pruned:
                oversized.note(config, compiled)
            tried.add(config_digest(config))
            yield self._trial(part, config, compiled, started[refs[index].key])
        if answered < len(refs):
            raise _StopSweep

    def _oversized_of(self, part: str) -> Oversized:
        # A whole of several launches has no sizes of its own.
        search = self.plan.kernel.searches[self.case.direction]
        grows = search.grows if part or not self._has_parts else ()
        return self.oversized.setdefault(part, Oversized(grows))

    @property
    def _has_parts(self) -> bool:
        return WHOLE not in {part.part for part in self.plan.parts}

    def _trial(self, part: str, config: Config, compiled: Compiled, started_us: int) -> Trial:
        prediction: Prediction | None = None
        reason = compiled.reason
        if compiled.schedules and self.walk is None:
            reason = reason or f"no time is predicted: the op {self.case.op.name} declares no walk"
        elif compiled.schedules:
            device = self.sweep.plan.device
            prediction = predict(compiled.schedules, self.walk, self.problem, config, device)
        ns = prediction.ns if prediction else math.inf
        self.times.setdefault(part, {})[config_digest(config)] = ns
        trial = self.plan.trial(
            part,
            config,
            device=self.sweep.plan.device,
            started_us=started_us,
            status=Status.PREDICTED if prediction else compiled.status,
            reason=reason,
            resources=compiled.resources,
            shortage=compiled.shortage,
            prediction=prediction,
            compile_ms=compiled.compile_ms,
            is_heuristic=self.plan.is_heuristic(part, config),
        )
        if prediction and part == WHOLE:
            self.predicted[trial.config_digest] = trial
        return trial


def _place(trial: Trial) -> tuple[float, str]:
    ns = trial.prediction.ns if trial.prediction else math.inf
    return ns, trial.config_digest


def _after_whole(trial: Trial, compiled: Compiled, started_us: int) -> Trial:
    """``trial`` after its whole program was compiled: with the same prediction, or with none if that failed."""
    again = replace(trial, compile_ms=compiled.compile_ms, started_us=started_us)
    if compiled.status is Status.COMPILED and trial.prediction is not None:
        terms = {**trial.prediction.terms, _WHOLE_PROGRAM: 1}
        return replace(again, prediction=replace(trial.prediction, terms=terms))
    return replace(
        again,
        status=compiled.status,
        reason=f"as a whole program: {compiled.reason}",
        resources=compiled.resources,
        shortage=compiled.shortage,
        prediction=None,
    )
