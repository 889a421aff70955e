"""What a worker does with requests. It owns jax and the device, the prepared cases and the timers."""

from collections.abc import Callable

from attn_tune.kernels.spec import load
from attn_tune.schema.device import Device
from attn_tune.schema.trial import Status
from attn_tune.tuner.attempt import Attempt
from attn_tune.tuner.loaded import LoadedConfigs
from attn_tune.tuner.measure import make_flush, race
from attn_tune.tuner.prepared import PreparedCases
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
from attn_tune.tuner.timers import Timer, choose_timer
from attn_tune.tuner.timers.timer import Flush


class Session:
    """Answers requests in this process. ``announce`` is called before each phase."""

    def __init__(self, announce: Callable[[Entering], object] = lambda entering: None):
        self._announce = announce
        self._prepared = PreparedCases(self._enter)
        self._loaded = LoadedConfigs()
        self._timers: dict[str, Timer] = {}
        self._flushes: dict[Device, Flush | None] = {}

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
        """The default device, and the software of this process."""
        device = load("attn_tune.runtime.devices:current_device")()
        environment = load("attn_tune.runtime.environments:current_environment")()
        return Identity(device=device, environment=environment)

    def run(self, request: Run) -> Outcome:
        """Compiles, validates and measures one config."""
        return Attempt(request, self._prepared, self._loaded, self._enter).go(
            timer=lambda: self._timer(request.policy),
            flush=lambda: self._flush(request.device, request.policy),
        )

    def load(self, message: Load) -> None:
        """Begins to compile what will be run. May be called from another thread."""
        self._loaded.load(message)
        self._prepared.foresee(message.ref)

    def finals(self, request: Finals) -> FinalsOutcome:
        """Times configs that were found right, in turns."""
        case = self._prepared.case(request.refs[0], request.seed)
        executables = []
        for ref in request.refs:
            self._enter(Phase.COMPILE)
            executables.append(self._loaded.take(ref, None, case.inputs))
        self._enter(Phase.MEASURE)
        measurements = race(
            [lambda e=executable: e.call(case.inputs) for executable in executables],
            timer=self._timer(request.policy),
            policy=request.policy,
            flush=self._flush(request.device, request.policy),
            round_id=request.round_id,
        )
        return FinalsOutcome(
            outcomes=tuple(
                Outcome(
                    status=Status.OK,
                    measurement=measurement,
                    resources=executable.artifact.resources,
                    compile_ms=executable.artifact.total_ms,
                )
                for executable, measurement in zip(executables, measurements, strict=True)
            )
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

    def _enter(self, phase: Phase) -> None:
        self._announce(Entering(phase=phase))
