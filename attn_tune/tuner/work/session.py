"""The worker's handling of requests. It owns jax and the device, the prepared cases and the timers."""

import dataclasses
import time
from collections.abc import Callable, Sequence

from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.contract import load
from attn_tune.schema.device import Device
from attn_tune.schema.trial import Measurement, Status, twin_round
from attn_tune.tuner.protocol import (
    Entering,
    Finals,
    FinalsOutcome,
    Identify,
    Identity,
    Load,
    MeasurePolicy,
    Outcome,
    Phase,
    Reply,
    Request,
    Run,
)
from attn_tune.tuner.work.background_compile import LoadedConfigs
from attn_tune.tuner.work.compile import Executable, part_outputs
from attn_tune.tuner.work.faults import outcome_of
from attn_tune.tuner.work.gpu_state import Look, open_look
from attn_tune.tuner.work.measure import Raced, make_flush, measure, race
from attn_tune.tuner.work.prepared_cases import PreparedCases, PrepareError
from attn_tune.tuner.work.timed_outputs import PROVEN_BYTES, TimedOutputs
from attn_tune.tuner.work.timers.choose import choose_timer
from attn_tune.tuner.work.timers.timer import Check, Flush, Timed, Timer
from attn_tune.tuner.work.validate import Verdict, validate, worst_of


class Session:
    """Answers requests in this process. ``announce`` is called before each phase."""

    def __init__(self, announce: Callable[[Entering], object] = lambda entering: None):
        self._announce = announce
        self._prepared = PreparedCases(self._enter)
        self._loaded = LoadedConfigs()
        self._timers: dict[str, Timer] = {}
        self._flushes: dict[Device, Flush | None] = {}
        self._looks: dict[Device, Look] = {}

    def answer(self, request: Request) -> Reply:
        """The answer to any request.

        Raises:
          PrepareError: inputs or a reference cannot be made.
        """
        match request:
            case Run():
                return self.run(request)
            case Finals():
                return self.finals(request)
            case Identify():
                return self.identify()

    def identify(self) -> Identity:
        """The default device, and the software of this process. The version of cuDNN is among a GPU's evidence."""
        device = load("attn_tune.devices.identity:current_device")()
        cudnn = load("attn_tune.devices.environments:cudnn_version")()
        if device.platform == "cuda" and cudnn:
            device = dataclasses.replace(device, evidence=(*device.evidence, ("cudnn", cudnn)))
        environment = load("attn_tune.devices.environments:current_environment")()
        import jax

        return Identity(device=device, environment=environment, device_count=jax.local_device_count())

    def run(self, request: Run) -> Outcome:
        """Compile, validate and measure one config, up to the first thing that goes wrong.

        Raises:
          PrepareError: inputs or a reference cannot be made; no config is to blame.
        """
        phases = _Phases(self._enter)
        try:
            outcome = self._tried(request, phases)
        except PrepareError:
            raise
        except Exception as error:  # An error of any type is the kernel's result.
            outcome = outcome_of(error, phases.phase)
        return dataclasses.replace(outcome, phases_ms=phases.end())

    def _tried(self, request: Run, phases: "_Phases") -> Outcome:
        ref = request.ref
        cases = [self._prepared.case(ref, seed) for seed in request.seeds]
        phases.enter(Phase.COMPILE)
        executable = self._loaded.take(ref, request.lowered, cases[0].inputs)
        if known := request.same_program_outcome(executable.resources):
            return known
        names = part_outputs(get_kernel(ref.kernel).searches[ref.direction], ref.part)
        phases.enter(Phase.VALIDATE)
        timed = TimedOutputs(cases[0], names)
        verdict = validate(executable.call, cases, names, timed.prove if request.measure else None)
        if not verdict.correct or not request.measure:
            return _outcome(executable, verdict)
        phases.enter(Phase.MEASURE)
        measurement = measure(
            executable.timed(cases[0].inputs),
            timer=self._timer(request.policy),
            policy=request.policy,
            flush=self._flush(request.device, request.policy),
            best_ns=request.best_ns,
            look=self._look(request.device),
            check=timed.check,
        )
        return _outcome(executable, worst_of([verdict, timed.verdict]), measurement)

    def load(self, message: Load) -> None:
        """Begin to compile what will be run. May be called from another thread."""
        self._loaded.load(message)
        self._prepared.foresee(message.ref)

    def finals(self, request: Finals) -> FinalsOutcome:
        """Prove configs right once more, and time those that are, in turns. One that is wrong then has no time."""
        case = self._prepared.case(request.refs[0], request.seed)
        executables: list[Executable] = []
        verdicts: list[Verdict] = []
        timed = [TimedOutputs(case) for _ in request.refs]
        for ref, outputs in zip(request.refs, timed, strict=True):
            self._enter(Phase.COMPILE)
            executable = self._loaded.take(ref, None, case.inputs)
            executables.append(executable)
            self._enter(Phase.VALIDATE)
            verdicts.append(validate(executable.call, [case], keep=outputs.prove))
            # The device has the case to hold as well.
            if sum(one.held_bytes for one in timed) > PROVEN_BYTES:
                outputs.release()
        right = [i for i, verdict in enumerate(verdicts) if verdict.correct]
        order = [*right, request.twin] if request.twin in right else right
        self._enter(Phase.MEASURE)
        began = time.perf_counter()
        raced = self._race(
            request,
            [executables[i].timed(case.inputs) for i in order],
            [timed[i].check for i in order],
        )
        # Measured in turns: each has its share of the time.
        share_ms = (time.perf_counter() - began) * 1e3 / max(1, len(order))
        verdicts = [worst_of([a, b.verdict]) for a, b in zip(verdicts, timed, strict=True)]
        measured = {i: found for i, found in zip(right, raced.measurements, strict=False) if verdicts[i].correct}
        outcomes = tuple(
            dataclasses.replace(
                _outcome(executable, verdict, measured.get(i)),
                conditions=raced.conditions,
                phases_ms={Phase.MEASURE: share_ms} if i in right else {},
            )
            for i, (executable, verdict) in enumerate(zip(executables, verdicts, strict=True))
        )
        twin = None
        if len(order) > len(right) and request.twin in measured:
            last = raced.measurements[-1]
            twin = dataclasses.replace(last, round_id=twin_round(request.round_id))
        return FinalsOutcome(outcomes=outcomes, twin=twin)

    def _race(self, request: Finals, runs: Sequence[Timed], checks: Sequence[Check]) -> Raced:
        if not runs:
            return Raced(measurements=())
        return race(
            runs,
            timer=self._timer(request.policy),
            policy=request.policy,
            flush=self._flush(request.device, request.policy),
            round_id=request.round_id,
            look=self._look(request.device),
            checks=checks,
        )

    def _timer(self, policy: MeasurePolicy) -> Timer:
        if policy.timer not in self._timers:
            self._timers[policy.timer] = choose_timer(policy.timer)
        return self._timers[policy.timer]

    def _flush(self, device: Device, policy: MeasurePolicy) -> Flush | None:
        if not policy.flush_l2:
            return None
        if device not in self._flushes:
            self._flushes[device] = make_flush(device)
        return self._flushes[device]

    def _look(self, device: Device) -> Look:
        if device not in self._looks:
            self._looks[device] = open_look(device)
        return self._looks[device]

    def _enter(self, phase: Phase) -> None:
        self._announce(Entering(phase=phase))


class _Phases:
    """The phases of one request: the current one, and the wall time of each so far."""

    def __init__(self, announce: Callable[[Phase], object]):
        self.phase = Phase.PREPARE
        self._announce = announce
        self._spent_ms: dict[str, float] = {}
        self._since = time.perf_counter()

    def enter(self, phase: Phase) -> None:
        """End the current phase and begin ``phase``."""
        self.end()
        self.phase = phase
        self._announce(phase)

    def end(self) -> dict[str, float]:
        """Milliseconds by phase, up to now."""
        now = time.perf_counter()
        spent = self._spent_ms.get(self.phase, 0.0) + (now - self._since) * 1e3
        self._spent_ms[str(self.phase)] = spent
        self._since = now
        return self._spent_ms


def _outcome(executable: Executable, verdict: Verdict, measurement: Measurement | None = None) -> Outcome:
    return Outcome(
        status=Status.OK if verdict.correct else Status.INCORRECT,
        reason=verdict.remark,
        errors=verdict.errors,
        measurement=measurement if verdict.correct else None,
        repeatable=verdict.repeatable,
        resources=executable.resources,
        compile_ms=executable.compile_ms,
    )
