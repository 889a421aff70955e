"""One config on its way through a worker: compiled, proven right and timed."""

import dataclasses
import time
from collections.abc import Callable

from attn_tune.kernels.registry import get_kernel
from attn_tune.schema.trial import Measurement, Status
from attn_tune.tuner.protocol import Outcome, Phase, Run
from attn_tune.tuner.work.background_compile import LoadedConfigs
from attn_tune.tuner.work.compile import Executable, part_outputs
from attn_tune.tuner.work.faults import outcome_of
from attn_tune.tuner.work.gpu_state import Look, nothing
from attn_tune.tuner.work.measure import measure
from attn_tune.tuner.work.prepared_cases import PreparedCases, PrepareError
from attn_tune.tuner.work.timed_outputs import TimedOutputs
from attn_tune.tuner.work.timers.timer import Flush, Timer
from attn_tune.tuner.work.validate import Verdict, validate, worst_of


class Attempt:
    """Carries one ``Run`` through its phases; ``phase`` is the one at hand."""

    def __init__(
        self,
        request: Run,
        prepared: PreparedCases,
        loaded: LoadedConfigs,
        enter: Callable[[Phase], object],
    ):
        self.request = request
        self.phase = Phase.PREPARE
        self._spent_ms: dict[str, float] = {}
        self._lap_name, self._lap_start = str(self.phase), time.perf_counter()
        self._prepared = prepared
        self._loaded = loaded
        self._announce = enter
        self._search = get_kernel(request.ref.kernel).searches[request.ref.direction]

    def go(
        self, timer: Callable[[], Timer], flush: Callable[[], Flush | None], look: Look = nothing
    ) -> Outcome:
        """Everything that was asked, up to the first thing that goes wrong.

        Raises:
          PrepareError: inputs or a reference cannot be made; no config is to blame.
        """
        try:
            outcome = self._tried(timer, flush, look)
        except PrepareError:
            raise
        except Exception as error:  # Whatever a kernel raises is its result.
            outcome = outcome_of(error, self.phase)
        self._lap("")
        return dataclasses.replace(outcome, phases_ms=self._spent_ms)

    def _tried(
        self, timer: Callable[[], Timer], flush: Callable[[], Flush | None], look: Look
    ) -> Outcome:
        request, ref = self.request, self.request.ref
        cases = [self._prepared.case(ref, seed) for seed in request.seeds]
        self._enter(Phase.COMPILE)
        executable = self._loaded.take(ref, request.lowered, cases[0].inputs)
        if twin := request.twin_outcome(executable.resources):
            return twin
        names = part_outputs(self._search, ref.part)
        self._enter(Phase.VALIDATE)
        timed = TimedOutputs(cases[0], names)
        verdict = validate(executable.call, cases, names, timed.prove if request.measure else None)
        if not verdict.correct or not request.measure:
            return _outcome(executable, verdict)
        self._enter(Phase.MEASURE)
        measurement = measure(
            executable.timed(cases[0].inputs),
            timer=timer(),
            policy=request.policy,
            flush=flush(),
            best_ns=request.best_ns,
            look=look,
            check=timed.check,
        )
        return _outcome(executable, worst_of([verdict, timed.verdict]), measurement)

    def _lap(self, name: str) -> None:
        """End the running phase and begin the phase ``name``."""
        now = time.perf_counter()
        spent = (now - self._lap_start) * 1e3
        self._spent_ms[self._lap_name] = self._spent_ms.get(self._lap_name, 0.0) + spent
        self._lap_name, self._lap_start = name, now

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._lap(str(phase))
        self._announce(phase)


def _outcome(
    executable: Executable, verdict: Verdict, measurement: Measurement | None = None
) -> Outcome:
    return Outcome(
        status=Status.OK if verdict.correct else Status.INCORRECT,
        reason=verdict.remark,
        errors=verdict.errors,
        measurement=measurement if verdict.correct else None,
        repeatable=verdict.repeatable,
        resources=executable.resources,
        compile_ms=executable.compile_ms,
    )
