"""One config on its way through a worker: compiled, proven right, timed, and proven right on the hard shapes."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from attn_tune.kernels.registry import get_kernel, get_op
from attn_tune.kernels.spec import Op, Outputs, Problem, load
from attn_tune.schema.config import config_from_dict
from attn_tune.schema.trial import WHOLE, Measurement, Status
from attn_tune.tuner.compile import Artifact, compile_config, part_outputs
from attn_tune.tuner.faults import outcome_of
from attn_tune.tuner.measure import measure
from attn_tune.tuner.prepared import PreparedCases, PrepareError
from attn_tune.tuner.protocol import Outcome, Phase, Run
from attn_tune.tuner.timers.timer import Flush, Timer
from attn_tune.tuner.validate import Verdict, judge, validate, worst_of

# On a battery problem these mean that the config does not fit it, not that it is wrong.
_DOES_NOT_FIT = (Status.OUT_OF_RESOURCES, Status.UNSUPPORTED)


class Attempt:
    """Carries one ``Run`` through its phases; ``phase`` is the one at hand."""

    def __init__(self, request: Run, prepared: PreparedCases, enter: Callable[[Phase], object]):
        self.request = request
        self.phase = Phase.PREPARE
        self._spent_ms: dict[str, float] = {}
        self._lap_name, self._lap_start = str(self.phase), time.perf_counter()
        self._prepared = prepared
        self._announce = enter
        spec = get_kernel(request.ref.kernel)
        self._spec, self._search = spec, spec.searches[request.ref.direction]

    def go(self, timer: Callable[[], Timer], flush: Callable[[], Flush | None]) -> Outcome:
        """Everything that was asked, up to the first thing that goes wrong.

        Raises:
          PrepareError: inputs or a reference cannot be made; no config is to blame.
        """
        outcome = self._proven(timer, flush)
        self._lap("")
        return dataclasses.replace(outcome, phases_ms=self._spent_ms)

    def _proven(self, timer: Callable[[], Timer], flush: Callable[[], Flush | None]) -> Outcome:
        try:
            outcome = self._on_case(timer, flush)
        except PrepareError:
            raise
        except Exception as error:  # Whatever a kernel raises is its result.
            return outcome_of(error, self.phase)
        if not self._owes_battery(outcome):
            return outcome
        self._lap("battery")
        return self._on_battery(outcome)

    def _on_case(self, timer: Callable[[], Timer], flush: Callable[[], Flush | None]) -> Outcome:
        request, ref = self.request, self.request.ref
        cases = [self._prepared.case(ref.signature, ref.direction, s) for s in request.seeds]
        self._enter(Phase.COMPILE)
        executable = compile_config(ref, cases[0].inputs)
        names = part_outputs(self._search, ref.part)
        self._enter(Phase.VALIDATE)
        verdict = validate(executable.call, cases, names)
        if not verdict.correct or not request.measure:
            return _outcome(executable.artifact, verdict)
        self._enter(Phase.MEASURE)
        runner = Runner(lambda: executable.call(cases[0].inputs))
        measurement = measure(
            runner,
            timer=timer(),
            policy=request.policy,
            flush=flush(),
            best_ns=request.best_ns,
        )
        # Launches close upon one another may race where lone ones did not.
        late = Verdict(errors=judge(runner.outputs, cases[0], names))
        return _outcome(executable.artifact, worst_of([verdict, late]), measurement)

    def _owes_battery(self, outcome: Outcome) -> bool:
        if outcome.status is not Status.OK or self.request.ref.part != WHOLE:
            return False
        measurement = outcome.measurement
        return measurement is None or measurement.median_ns < self.request.battery_below_ns

    def _on_battery(self, outcome: Outcome) -> Outcome:
        """``outcome`` if the config is also right on the op's battery, else what went wrong there."""
        op = get_op(self.request.ref.signature.op)
        for problem in self._battery_problems(op):
            failed = self._on_battery_problem(op, problem)
            if failed is not None:
                return dataclasses.replace(
                    failed, resources=outcome.resources, compile_ms=outcome.compile_ms
                )
        return dataclasses.replace(outcome, battery=True)

    def _on_battery_problem(self, op: Op, problem: Problem) -> Outcome | None:
        ref = self.request.ref
        case = self._prepared.battery(op, problem, ref.direction)
        try:
            self._enter(Phase.COMPILE)
            executable = compile_config(ref, case.inputs, problem)
            self._enter(Phase.VALIDATE)
            verdict = validate(executable.call, [case])
        except Exception as error:
            failed = outcome_of(error, self.phase)
            if failed.status in _DOES_NOT_FIT:
                return None
        else:
            if verdict.correct:
                return None
            failed = _outcome(executable.artifact, verdict)
        return dataclasses.replace(
            failed, reason=f"on the battery's {op.to_signature(problem)}: {failed.reason}"
        )

    def _battery_problems(self, op: Op) -> list[Problem]:
        """The battery problems that the config claims to fit."""
        ref, device = self.request.ref, self.request.device
        config = config_from_dict(self._search.config, ref.config)
        problems = load(op.battery)(op.from_signature(ref.signature)) if op.battery else ()
        return [
            problem
            for problem in problems
            if not self._spec.unsupported(problem, ref.direction, device)
            and not self._search.infeasible(problem, device, config)
        ]

    def _lap(self, name: str) -> None:
        """What was going on ends, and ``name`` begins."""
        now = time.perf_counter()
        spent = (now - self._lap_start) * 1e3
        self._spent_ms[self._lap_name] = self._spent_ms.get(self._lap_name, 0.0) + spent
        self._lap_name, self._lap_start = name, now

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        if self._lap_name != "battery":  # Its phases are told as one.
            self._lap(str(phase))
        self._announce(phase)


class Runner:
    """Calls a function and keeps what came last, so that what was timed can be checked too."""

    def __init__(self, call: Callable[[], Outputs]):
        self._call = call
        self.outputs: Outputs = {}

    def __call__(self) -> Any:
        self.outputs = self._call()
        return self.outputs


def _outcome(
    artifact: Artifact, verdict: Verdict, measurement: Measurement | None = None
) -> Outcome:
    return Outcome(
        status=Status.OK if verdict.correct else Status.INCORRECT,
        reason=verdict.remark,
        errors=verdict.errors,
        measurement=measurement if verdict.correct else None,
        resources=artifact.resources,
        compile_ms=artifact.total_ms,
    )
