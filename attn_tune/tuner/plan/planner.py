"""Planning of a sweep: each kernel on each case, against what was tried before."""

import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attn_tune.kernels.spec import LIBRARIES, KernelSpec
from attn_tune.runtime.lookup.question import missing
from attn_tune.schema.config import config_digest, config_to_dict
from attn_tune.schema.device import Device
from attn_tune.schema.environment import Environment
from attn_tune.schema.errors import NoDataError, UnsupportedError
from attn_tune.schema.signature import Signature
from attn_tune.schema.trial import WHOLE, Stage, Status, Trial
from attn_tune.tuner.plan.case import Case, GridPoint, make_cases
from attn_tune.tuner.plan.far_behind import without_far_behind
from attn_tune.tuner.plan.hints import Proposal, proposed
from attn_tune.tuner.plan.plan import CasePlan, ConfigDict, KernelPlan, PartPlan, Plan
from attn_tune.tuner.plan.strategies.effort import Effort
from attn_tune.tuner.plan.strategies.space import Prior

type Known = Mapping[tuple[str, str], Status]
type Measured = Callable[[str, str, Signature, Environment], Known]
type History = Callable[[str, str, Signature, Environment], Iterable[Trial]]
type Priors = Callable[[str, str, str, Signature, Environment], Prior]


@dataclass(frozen=True, kw_only=True)
class _Planner:
    """The facts that every kernel of a plan is looked at with; see ``make_plan``."""

    device: Device
    device_count: int
    environment: Environment
    measured: Measured
    history: History | None
    effort: Effort
    priors: Priors
    allow_nondeterministic: bool
    allow_unproven: bool
    hints: Sequence[Proposal]

    def kernel(self, case: Case, spec: KernelSpec) -> KernelPlan:
        """Plan one kernel on one case."""
        environment = spec.environment(self.environment)
        known = self.measured(spec.id, case.direction, case.signature, environment)

        base = KernelPlan(case=case, kernel=spec, environment=environment)

        def refused(status: Status, reason: str, config: ConfigDict, part: str = WHOLE) -> Trial:
            return base.trial(part, config, device=self.device, status=status, reason=reason)

        def left_out(status: Status, reason: str) -> KernelPlan:
            trial = refused(status, reason, {})
            pruned = () if (WHOLE, trial.config_digest) in known else (trial,)
            return replace(base, pruned=pruned, refusal=status, finals=False)

        search = spec.searches.get(case.direction)
        problem = case.op.from_signature(case.signature)
        reason = refusal(spec, problem, case.direction, self.device)
        reason = reason or self._lacks_devices(case.op.device_count(problem))
        if search is None or reason:
            return left_out(Status.UNSUPPORTED, reason)
        try:
            heuristic = search.heuristic(problem, self.device)
            hinted = proposed(self.hints, spec.id, search, case, self.device)
            spaces = {
                part: _distinct(_first(heuristic, part), [*hinted[part], *make(problem, self.device)])
                for part, make in search.candidates.items()
            }
        # A kernel's own mistake is its result, not the end of the sweep.
        except UnsupportedError as error:
            return left_out(Status.RUNTIME_ERROR, str(error))
        except Exception as error:
            message = f"declaring its configs failed: {type(error).__name__}: {error}"
            return left_out(Status.RUNTIME_ERROR, message)
        past = self._past(spec, case, environment, known)
        parts, pruned = [], []
        for part, space in spaces.items():
            feasible = []
            for config in space:
                why = search.infeasible(problem, self.device, config)
                data = config_to_dict(config)
                if not why:
                    feasible.append(data)
                elif (part, config_digest(data)) not in known:
                    pruned.append(refused(Status.UNSUPPORTED, why, data, part))
            parts.append(self._part(part, feasible, known, past, {config_digest(one) for one in hinted[part]}))
        waiting = self.allow_unproven and Status.UNPROVEN in known.values()
        owed = any(part.todo for part in parts) or (
            self.history is not None and (waiting or not any(t.stage is Stage.FINAL for t in past))
        )
        return replace(
            base,
            heuristic=config_to_dict(heuristic),
            parts=tuple(parts),
            pruned=tuple(pruned),
            known=past,
            failed=frozenset(
                digest for (part, digest), status in known.items() if part == WHOLE and not status.is_measured
            ),
            finals=owed,
            # A library's is what JAX itself would run.
            allow_nondeterministic=self.allow_nondeterministic or spec.backend in LIBRARIES,
            allow_unproven=self.allow_unproven,
            tries_all=self.effort.tries_all,
            prior=functools.partial(self._prior, spec.id, case, environment),
        )

    def _lacks_devices(self, needed: int) -> str:
        if needed <= self.device_count:
            return ""
        return f"the problem needs {needed} devices; there are {self.device_count} here"

    def _prior(self, kernel: str, case: Case, environment: Environment, part: str) -> Prior:
        return self.priors(kernel, case.direction, part, case.signature, environment)

    def _part(
        self,
        part: str,
        space: Sequence[ConfigDict],
        known: Known,
        past: Sequence[Trial],
        proposed_digests: Collection[str],
    ) -> PartPlan:
        times = _search_times(part, past)
        digests = dict.fromkeys(config_digest(config) for config in space)
        tried = {digest: times.get(digest, math.inf) for (name, digest) in known if name == part and digest in digests}
        hinted = tuple(digest for digest in digests if digest in proposed_digests)
        todo = self.effort.owed(len(space), list(tried.values()), sum(d not in tried for d in hinted))
        if todo and self.history is None:
            # The times of earlier trials are out of reach, and the best of a part is chosen by time.
            tried = {d: ns for d, ns in tried.items() if not known[part, d].is_measured}
            todo = self.effort.owed(len(space), list(tried.values()), sum(d not in tried for d in hinted))
        return PartPlan(part=part, space=tuple(space), todo=todo, tried=tried, hinted=hinted)

    def _past(self, spec: KernelSpec, case: Case, environment: Environment, known: Known) -> tuple[Trial, ...]:
        if self.history is None:
            return ()
        trials = self.history(spec.id, case.direction, case.signature, environment)
        return tuple(
            t
            for t in trials
            if t.status.is_measured
            and t.environment == environment
            and t.device == self.device
            and (t.part, t.config_digest) in known
        )


def make_plan(
    points: Iterable[GridPoint],
    *,
    kernels: Sequence[KernelSpec],
    device: Device,
    environment: Environment,
    directions: Sequence[str] = (),
    measured: Measured = lambda kernel, direction, signature, environment: {},
    history: History | None = None,
    effort: Effort | None = None,
    priors: Priors = lambda kernel, direction, part, signature, environment: Prior(),
    allow_nondeterministic: bool = True,
    allow_unproven: bool = False,
    device_count: int = 1,
    hints: Sequence[Proposal] = (),
) -> Plan:
    """Plan a sweep of ``kernels`` over ``points``.

    Args:
      directions: those that are planned, of each op that has them; all by default.
      environment: without a source hash; each kernel adds its own.
      measured: ``(kernel id, direction, signature, environment) -> {(part, config digest): status}`` of what was tried
        on this device in an equal environment; it is not tried again.
      history: the same trials themselves. With it an interrupted case continues where it stopped; without it the
        right configs of an unfinished part are measured again, because the best one is chosen by time, and a case
        with nothing left but its finals counts as finished.
      effort: how many configs of each part are evaluated; all without one. The sweep's strategy has to be its.
      priors: ``(kernel id, direction, part, signature, environment) -> Prior``: what was measured on other cases.
      allow_nondeterministic: without it, kernels that need leave (``KernelSpec.needs_leave``) are left out, so that
        none of them is ever measured, and with it decided on, by a sweep that did not ask for it; and a config of
        another kernel whose bits differ from run to run is refused when that is seen.
      allow_unproven: configs that can run no feature problem of the op go to the finals too. Without it their status
        is ``unproven`` and nothing is decided on them.
      hints: configs that are tried first, as far as the kernel can run them.
      device_count: devices that one process has. Problems that need more are refused, with the reason.

    Raises:
      NoDataError: no point, or no kernel for any point.
    """
    planner = _Planner(
        device=device,
        device_count=device_count,
        environment=environment,
        measured=measured,
        history=history,
        effort=effort or Effort(),
        priors=priors,
        allow_nondeterministic=allow_nondeterministic,
        allow_unproven=allow_unproven,
        hints=hints,
    )
    points = tuple(points)
    cases, wanted = [], make_cases(points, directions)
    if points and not wanted:
        raise NoDataError(
            f"nothing to sweep: no grid point has the direction {' or '.join(directions)}; ops without a gradient and "
            "problems that update an operand in place have fwd alone"
        )
    for case in wanted:
        specs = [
            spec
            for spec in kernels
            if spec.op == case.signature.op and (allow_nondeterministic or not spec.needs_leave(case.direction))
        ]
        plans = tuple(planner.kernel(case, spec) for spec in specs)
        if plans:
            cases.append(without_far_behind(CasePlan(case=case, kernels=plans)))
    if not cases:
        raise NoDataError("nothing to sweep: no grid point is of an op that the chosen kernels do")
    return Plan(device=device, cases=tuple(cases))


def refusal(spec: KernelSpec, problem: Any, direction: str, device: Device) -> str:
    """The reason why a kernel cannot do a problem, or cannot run here at all; empty where it can."""
    if direction not in spec.searches:
        return f"{spec.id} does not implement {direction}"
    return missing(spec) or spec.unsupported(problem, direction, device) or ""


def _search_times(part: str, past: Iterable[Trial]) -> dict[str, float]:
    """Times that a search measured of each config; finals, which may be faster, only where there is nothing else."""
    times: dict[str, float] = {}
    for trial in sorted(past, key=lambda t: (t.stage is not Stage.SEARCH, t.started_us)):
        if trial.part == part and trial.measurement is not None:
            times.setdefault(trial.config_digest, trial.measurement.median_ns)
    return times


def _first(heuristic: Any, part: str) -> Any:
    return heuristic if part == WHOLE else getattr(heuristic, part)


def _distinct(first: Any, configs: Iterable[Any]) -> list[Any]:
    return list({config_digest(config): config for config in (first, *configs)}.values())
