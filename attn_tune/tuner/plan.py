"""The plan of a sweep: what will be tried, what was tried before, and what never will be, with the reason."""

import importlib.util
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.config import config_digest, config_to_dict
from attn_tune.schema.device import Device
from attn_tune.schema.environment import Environment
from attn_tune.schema.errors import NoDataError
from attn_tune.schema.signature import Signature
from attn_tune.schema.trial import DIRECTIONS, WHOLE, Stage, Status, Trial
from attn_tune.tuner.case import Case, GridPoint, make_cases
from attn_tune.tuner.strategies import sample

type Known = Mapping[tuple[str, str], Status]
type Measured = Callable[[str, str, Signature, Environment], Known]
type History = Callable[[str, str, Signature, Environment], Iterable[Trial]]
type ConfigDict = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class PartPlan:
    """The candidates of one part that are still to be tried, the heuristic's first. ``done`` were tried before."""

    part: str
    candidates: tuple[ConfigDict, ...]
    done: int = 0


@dataclass(frozen=True, kw_only=True)
class KernelPlan:
    """One kernel on one case.

    ``pruned`` are trials that need no device: refused before compiling, with the reason. ``known`` are the ok trials
    of an earlier run in an equal environment, ``failed`` the digests of whole configs that were found not to be right.
    ``finals`` says whether the last round is still owed.
    """

    kernel: KernelSpec
    environment: Environment
    heuristic: ConfigDict
    parts: tuple[PartPlan, ...] = ()
    pruned: tuple[Trial, ...] = ()
    known: tuple[Trial, ...] = ()
    failed: frozenset[str] = frozenset()
    finals: bool = True

    @property
    def runnable(self) -> bool:
        """Whether the kernel can run the case at all."""
        return bool(self.parts)

    @property
    def todo(self) -> int:
        """Configs to try. Besides the parts': a direction of several launches also runs whole twice."""
        wholes = 2 if self.finals and WHOLE not in {part.part for part in self.parts} else 0
        return sum(len(part.candidates) for part in self.parts) + (wholes if self.parts else 0)


@dataclass(frozen=True, kw_only=True)
class CasePlan:
    """One case and the kernels that it is tried on."""

    case: Case
    kernels: tuple[KernelPlan, ...]

    @property
    def todo(self) -> int:
        """Configs to try."""
        return sum(kernel.todo for kernel in self.kernels)

    @property
    def finished(self) -> bool:
        """Nothing is left to do, not even the finals."""
        return self.todo == 0 and not any(k.finals for k in self.kernels if k.runnable)


@dataclass(frozen=True, kw_only=True)
class PlanCounts:
    """How much there is: configs to try, tried before and refused before compiling, over cases."""

    cases: int
    todo: int
    done: int
    pruned: int
    unsupported_kernels: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything a sweep will do, in order."""

    device: Device
    cases: tuple[CasePlan, ...]

    @property
    def counts(self) -> PlanCounts:
        """The totals."""
        kernels = [kernel for case in self.cases for kernel in case.kernels]
        return PlanCounts(
            cases=len(self.cases),
            todo=sum(kernel.todo for kernel in kernels),
            done=sum(part.done for kernel in kernels for part in kernel.parts),
            pruned=sum(len(kernel.pruned) for kernel in kernels if kernel.runnable),
            unsupported_kernels=sum(not kernel.runnable for kernel in kernels),
        )

    def estimate_s(self, seconds_per_config: float, seconds_per_case: float = 5.0) -> float:
        """Expected wall time, from what a config and a case (inputs, reference, finals) are thought to cost."""
        open_cases = sum(not case.finished for case in self.cases)
        return self.counts.todo * seconds_per_config + open_cases * seconds_per_case


@dataclass(frozen=True, kw_only=True)
class _Planner:
    """What every kernel of a plan is looked at with."""

    device: Device
    environment: Environment
    measured: Measured
    history: History | None
    max_candidates: int | None
    now_us: int = field(default_factory=lambda: time.time_ns() // 1000)

    def kernel(self, case: Case, spec: KernelSpec) -> KernelPlan:
        """Plans one kernel on one case."""
        environment = spec.environment(self.environment)
        known = self.measured(spec.id, case.direction, case.signature, environment)

        def refuse(status: Status, reason: str, config: ConfigDict, part: str = WHOLE) -> Trial:
            return Trial(
                kernel=spec.id,
                direction=case.direction,
                signature=case.signature,
                device=self.device,
                environment=environment,
                config=config,
                part=part,
                status=status,
                reason=reason,
                started_us=self.now_us,
            )

        def out(trial: Trial) -> KernelPlan:
            fresh = (WHOLE, trial.config_digest) not in known
            pruned = (trial,) if fresh else ()
            return KernelPlan(
                kernel=spec, environment=environment, heuristic={}, pruned=pruned, finals=False
            )

        search = spec.searches.get(case.direction)
        problem = case.op.from_signature(case.signature)
        reason = _kernel_reason(spec, search, problem, case.direction, self.device)
        if search is None or reason:
            return out(refuse(Status.UNSUPPORTED, reason, {}))
        try:
            heuristic = search.heuristic(problem, self.device)
            spaces = {
                part: _distinct(_first(heuristic, part), make(problem, self.device))
                for part, make in search.candidates.items()
            }
        except (
            Exception
        ) as error:  # A kernel's own mistake is its result, not the end of the sweep.
            message = f"declaring its configs failed: {type(error).__name__}: {error}"
            return out(refuse(Status.RUNTIME_ERROR, message, {}))
        past = self._past(spec, case, environment)
        parts, pruned = [], []
        for part, space in spaces.items():
            feasible = []
            for config in space:
                why = search.infeasible(problem, self.device, config)
                data = config_to_dict(config)
                if not why:
                    feasible.append(data)
                elif (part, config_digest(data)) not in known:
                    pruned.append(refuse(Status.UNSUPPORTED, why, data, part))
            seed = f"{spec.id} {case.direction} {case.signature.text} {part}"
            if self.max_candidates is not None:
                feasible = sample(feasible, self.max_candidates, seed)
            parts.append(self._part(part, feasible, known))
        owed = any(part.candidates for part in parts) or (
            self.history is not None and not any(t.stage is Stage.FINAL for t in past)
        )
        return KernelPlan(
            kernel=spec,
            environment=environment,
            heuristic=config_to_dict(heuristic),
            parts=tuple(parts),
            pruned=tuple(pruned),
            known=past,
            failed=frozenset(
                digest
                for (part, digest), status in known.items()
                if part == WHOLE and status is not Status.OK
            ),
            finals=owed,
        )

    def _part(self, part: str, space: Sequence[ConfigDict], known: Known) -> PartPlan:
        tried = {digest for (name, digest) in known if name == part}
        todo = tuple(c for c in space if config_digest(c) not in tried)
        if todo and self.history is None:
            # The times of earlier trials are out of reach, and the best of a part is chosen by time.
            ok = {d for (name, d), status in known.items() if name == part and status is Status.OK}
            todo = tuple(c for c in space if config_digest(c) not in tried - ok)
        return PartPlan(part=part, candidates=todo, done=len(space) - len(todo))

    def _past(self, spec: KernelSpec, case: Case, environment: Environment) -> tuple[Trial, ...]:
        if self.history is None:
            return ()
        trials = self.history(spec.id, case.direction, case.signature, environment)
        return tuple(
            t
            for t in trials
            if t.status is Status.OK and t.environment == environment and t.device == self.device
        )


def make_plan(
    points: Iterable[GridPoint],
    *,
    kernels: Sequence[KernelSpec],
    device: Device,
    environment: Environment,
    directions: Sequence[str] = DIRECTIONS,
    measured: Measured = lambda kernel, direction, signature, environment: {},
    history: History | None = None,
    max_candidates: int | None = None,
) -> Plan:
    """Plans a sweep of ``kernels`` over ``points``.

    Args:
      environment: without a source hash; each kernel adds its own.
      measured: ``(kernel id, direction, signature, environment) -> {(part, config digest): status}`` of what was tried
        on this device in an equal environment; it is not tried again.
      history: the same trials themselves. With it an interrupted case goes on where it stopped; without it the
        right configs of an unfinished part are measured again, because the best one is chosen by time, and a case
        with nothing left but its finals counts as finished.
      max_candidates: at most so many configs of each part, the heuristic's among them: half of them nearest to it, half
        random, the same ones every time.

    Raises:
      NoDataError: no point, or no kernel for any point.
    """
    planner = _Planner(
        device=device,
        environment=environment,
        measured=measured,
        history=history,
        max_candidates=max_candidates,
    )
    cases = []
    for case in make_cases(points, directions):
        specs = [spec for spec in kernels if spec.op == case.signature.op]
        plans = tuple(planner.kernel(case, spec) for spec in specs)
        if plans:
            cases.append(CasePlan(case=case, kernels=plans))
    if not cases:
        raise NoDataError("nothing to sweep: no grid point is of an op that the chosen kernels do")
    return Plan(device=device, cases=tuple(cases))


def _kernel_reason(
    spec: KernelSpec, search: Search | None, problem: Any, direction: str, device: Device
) -> str:
    if search is None:
        return f"{spec.id} does not implement {direction}"
    missing = [name for name in spec.requires if importlib.util.find_spec(name) is None]
    if missing:
        return f"{spec.id} needs the module {missing[0]!r}, which is not installed"
    return spec.unsupported(problem, direction, device) or ""


def _first(heuristic: Any, part: str) -> Any:
    return heuristic if part == WHOLE else getattr(heuristic, part)


def _distinct(first: Any, configs: Iterable[Any]) -> list[Any]:
    return list({config_digest(config): config for config in (first, *configs)}.values())
