"""Executors: who runs a request. The sweep knows only this interface; a pool or a fleet can stand behind it."""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, Self

from attn_tune.schema.device import Device
from attn_tune.schema.errors import AttnTuneError
from attn_tune.schema.trial import Status
from attn_tune.tuner.protocol import (
    ConfigRef,
    Entering,
    Finals,
    FinalsOutcome,
    Identify,
    Identity,
    Limits,
    Load,
    Lowered,
    Outcome,
    Phase,
    Refusal,
    Reply,
    Request,
    Run,
)
from attn_tune.tuner.run.compile_ahead import Answer, CompileAhead
from attn_tune.tuner.run.health import HealthGate, UnhealthyError
from attn_tune.tuner.run.process import WorkerDied, WorkerLate, WorkerProcess
from attn_tune.tuner.run.temporary_folder import TemporaryFolder
from attn_tune.tuner.work.faults import DiskFullError

logger = logging.getLogger(__name__)

_MOST_ATTEMPTS = 3
# Where several processes can hold one device. A TPU belongs to one; on a CPU they would be in each other's way.
_SHARED_PLATFORMS = ("cuda", "rocm")


class ExecutorError(AttnTuneError):
    """No worker can be had: it does not even start."""

    exit_code = 3


class CaseError(AttnTuneError):
    """A request cannot be served for a reason that is no config's: inputs, reference or finals failed."""


class Interrupted(AttnTuneError):
    """The caller asked to stop while a request was running; its worker was killed."""

    exit_code = 130


class Executor(Protocol):
    """Runs requests one after the other on one device.

    No config can harm the caller: its failure comes back as an ``Outcome``. Every method may raise ``CaseError``,
    ``ExecutorError``, and ``Interrupted`` once ``interrupt()`` is true. ``on_phase`` is called with each phase that the
    worker enters, and with None when a request is answered.
    """

    interrupt: Callable[[], bool]
    on_phase: Callable[[Phase | None], object]

    def identify(self) -> Identity:
        """The device that the requests run on, and its software."""
        ...

    def expect(self, refs: Sequence[ConfigRef], device: Device) -> None:
        """Say what will likely be run next, in this order, in place of what was announced before. It may be ignored."""
        ...

    def run(self, request: Run) -> Outcome:
        """Compile, validate and measure one config."""
        ...

    def finals(self, request: Finals) -> FinalsOutcome:
        """Measure right configs against one another."""
        ...

    def close(self) -> None:
        """End the worker."""
        ...


class IsolatedExecutor:
    """One worker process that lives as long as it behaves. The device is used by it alone.

    Other processes, without a device, compile what is expected while it measures: see ``CompileAhead``.

    A worker that dies, hangs or has broken its CUDA context is replaced. What happened is blamed on the running config
    only if its worker was fresh; else the config gets a second try on a fresh one, for an earlier config may have done
    the damage. The finals have a fresh worker, which continues with what comes after them.
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        environment: Mapping[str, str] | None = None,
        interrupt: Callable[[], bool] = lambda: False,
        cores: int | None = None,
    ):
        """``environment`` is added to the worker's environment variables.

        Of this machine's cores, ``cores`` are for this device: all, unless several devices share them.
        """
        self.interrupt = interrupt
        self.on_phase: Callable[[Phase | None], object] = lambda phase: None
        self.limits = limits or Limits()
        # A worker that takes over must not compile the reference again; what compiles at once is not worth the disk.
        self._cache = TemporaryFolder("attn-tune-worker-")
        self._environment = {
            "JAX_COMPILATION_CACHE_DIR": self._cache.path,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            **(environment or {}),
        }
        self._worker: WorkerProcess | None = None
        # Started early: the finals need a worker that has run nothing, and starting takes seconds.
        self._spare: WorkerProcess | None = None
        self._used = False
        self._ahead = CompileAhead(environment=environment, cores=cores, on_ready=self._load)
        # Programs of the present case that helpers made, by key: the finals' worker need not make them again.
        self._case: tuple[str, str] | None = None
        self._programs: dict[tuple, Lowered] = {}
        # The keys of what the present worker has been asked to load, and whether it may be asked for more.
        self._loaded: set[tuple] = set()
        self._may_load = False
        self._phase = Phase.START
        self._gate = HealthGate(self._environment)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def worker_pid(self) -> int | None:
        """The process id of the worker, None while there is none."""
        return self._worker.pid if self._worker else None

    def identify(self) -> Identity:
        """See ``Executor.identify``."""
        # While the worker starts, so do its helpers.
        self._ahead.warm_up()
        return self._expect(self._ask_twice(Identify()), Identity)

    def expect(self, refs: Sequence[ConfigRef], device: Device) -> None:
        """See ``Executor.expect``."""
        self._ahead.expect([ref for ref in refs if ref.key not in self._programs], device)

    def run(self, request: Run) -> Outcome:
        """See ``Executor.run``."""
        answer = self._compiled_ahead(request.ref)
        if isinstance(answer, Outcome):
            return answer
        if isinstance(answer, Lowered):
            if known := request.same_program_outcome(answer.resources):
                return known
            # Known to be new: requests need not carry, with every config, what was tried.
            request = dataclasses.replace(request, tried={})
        self._gate.platform = request.device.platform
        self._start_spare(request.device)
        for attempt in range(1, _MOST_ATTEMPTS + 1):
            worker = self._ready()
            # A config that is tried for the second time is alone with its worker.
            self._may_load = attempt == 1
            alone = attempt > 1 or not self._ahead.helpers
            fresh = worker.served == 0 and alone
            if self._may_load:
                for ref, lowered in self._ahead.ready(besides=self._loaded):
                    self._load(ref, lowered)
            if request.ref.key not in self._loaded:
                request = dataclasses.replace(request, lowered=answer)
            try:
                outcome = self._expect(self._ask(request), Outcome)
            except WorkerLate as late:
                outcome = Outcome(status=Status.TIMED_OUT, reason=self._late(late))
                if self._phase is Phase.PREPARE:
                    raise CaseError(outcome.reason) from None
            except WorkerDied as death:
                outcome = Outcome(status=death.status, reason=f"{self._phase}: {death}")
                # Random kills from outside seldom hit one config three times.
                fresh = fresh and (not death.by_outsider or attempt == _MOST_ATTEMPTS)
                if self._phase is Phase.PREPARE and (fresh or attempt == _MOST_ATTEMPTS):
                    raise CaseError(outcome.reason) from None
            else:
                _log_phases(request, outcome)
                if not outcome.sticky:
                    return outcome
                self._discard()
            if fresh:
                break
            logger.info("%s: trying again on a fresh worker: %s", request.ref.kernel, outcome.reason)
        return outcome

    def _compiled_ahead(self, ref: ConfigRef) -> Answer:
        """The answer of a helper, waited for where it was expected. Programs of the case itself are kept."""
        if (case := (ref.signature.text, ref.direction)) != self._case:
            self._case, self._programs = case, {}
        if (known := self._programs.get(ref.key)) is not None:
            return known
        if self._ahead.helpers:
            self.on_phase(Phase.COMPILE)
        try:
            answer = self._ahead.take(ref, self.interrupt)
        except InterruptedError:
            self.on_phase(None)
            raise Interrupted("interrupted while a config was compiled ahead") from None
        if isinstance(answer, Lowered) and ref.problem is None:
            self._programs[ref.key] = answer
        return answer

    def _load(self, ref: ConfigRef, lowered: Lowered) -> None:
        """Let the worker do XLA's part of ``ref`` while it is busy with another. Called on a helper's thread."""
        worker = self._worker
        if worker is None or not self._may_load or ref.key in self._loaded:
            return
        self._send(worker, ref, lowered)

    def _send(self, worker: WorkerProcess, ref: ConfigRef, lowered: Lowered) -> None:
        """Send ``worker`` a program to compile in the background."""
        # If the worker is gone, the thread that waits for its answer finds out.
        with contextlib.suppress(WorkerDied):
            self._loaded.add(ref.key)
            worker.send(Load(ref=ref, lowered=lowered))

    def finals(self, request: Finals) -> FinalsOutcome:
        """See ``Executor.finals``."""
        if self._used:
            self._retire()
        # Nothing but its own is compiled in the process that measures; what comes next is loaded when its turn comes.
        self._may_load = False
        worker = self._ready()
        for ref in request.refs:
            if isinstance(answer := self._compiled_ahead(ref), Lowered):
                self._send(worker, ref, answer)
        return self._expect(self._ask_twice(request), FinalsOutcome)

    def close(self) -> None:
        """See ``Executor.close``."""
        self._ahead.close()
        self._retire()
        self._close_spare()
        self._cache.close()

    def _retire(self) -> None:
        """Let the worker end in peace."""
        worker, self._worker = self._worker, None
        self._loaded = set()
        if worker:
            worker.close()

    def _start_spare(self, device: Device) -> None:
        """Start the next worker where two can hold the device, and starting does not take the time of what runs."""
        if self._spare is None and device.platform in _SHARED_PLATFORMS:
            self._spare = self._start()

    def _start(self) -> WorkerProcess:
        return WorkerProcess(self._environment, memory_gib=self.limits.memory_gib)

    def _close_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare:
            spare.kill()

    def _ask_twice(self, request: Request) -> Reply:
        """Ask; once more, on a fresh worker, if the first one does not survive it."""
        reason = ""
        for _ in (1, 2):
            try:
                return self._ask(request)
            except WorkerLate as late:
                reason = self._late(late)
            except WorkerDied as death:
                reason = f"{self._phase}: {death}"
        raise CaseError(reason)

    def _ask(self, request: Request) -> Reply:
        """One request, one reply; the deadline is that of the phase that the worker says it is in.

        Raises:
          WorkerDied, WorkerLate: the worker is gone; the next request gets a new one.
        """
        worker = self._ready()
        self._used |= not isinstance(request, Identify)
        self._phase = Phase.PREPARE
        try:
            worker.send(request)
            worker.served += 1
            while True:
                message = worker.receive(self.limits.of(self._phase), self.interrupt)
                if not isinstance(message, Entering):
                    return message
                self._phase = message.phase
                self.on_phase(message.phase)
        except (WorkerDied, WorkerLate):
            self._discard()
            raise
        except InterruptedError:
            self._discard()
            raise Interrupted("interrupted while a config was running") from None
        except BaseException:
            # A reply may still be under way; the next request must not read it.
            self._discard()
            raise
        finally:
            self.on_phase(None)

    def _ready(self) -> WorkerProcess:
        if self._worker is not None:
            return self._worker
        self._phase = Phase.START
        self.on_phase(Phase.START)
        try:
            self._gate.pass_through(self.interrupt)
        except UnhealthyError as error:
            raise ExecutorError(str(error)) from None
        except InterruptedError:
            raise Interrupted("interrupted while the device was probed") from None
        spare, self._spare = self._spare, None
        if spare and not spare.is_running:
            # Its end while it waited, from any cause, is no reason to give the device up.
            spare.kill()
            spare = None
        worker = self._worker = spare or self._start()
        self._used = False
        try:
            worker.wait_until_ready(self.limits.start, self.interrupt)
        except WorkerDied as death:
            self._discard()
            raise ExecutorError(f"the worker process does not start: {death}") from None
        except InterruptedError:
            self._discard()
            raise Interrupted("interrupted while the worker was starting") from None
        return worker

    def _discard(self) -> None:
        worker, self._worker = self._worker, None
        self._loaded = set()
        if worker:
            self._gate.suspect()
            worker.kill()

    def _late(self, late: WorkerLate) -> str:
        limit = self.limits.of(self._phase)
        return f"{self._phase}: no end within {limit:g} s; the worker was killed{late}"

    @staticmethod
    def _expect[R](reply: Reply, kind: type[R]) -> R:
        if isinstance(reply, Refusal):
            raise DiskFullError(reply.reason) if reply.disk_full else CaseError(reply.reason)
        assert isinstance(reply, kind), reply
        return reply


def _log_phases(request: Run, outcome: Outcome) -> None:
    phases = ", ".join(f"{name} {ms:.0f}" for name, ms in outcome.phases_ms.items())
    ref = request.ref
    logger.debug("%s %s %s: %s; ms: %s", ref.kernel, ref.direction, ref.config, outcome.status, phases)
