"""An executor on a Ray cluster: the driver's end of one actor. Ray places it, and starts it again elsewhere."""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attn_tune.schema.device import Device
from attn_tune.schema.errors import AttnTuneError
from attn_tune.schema.trial import Status
from attn_tune.tuner.protocol import (
    ConfigRef,
    Finals,
    FinalsOutcome,
    Identify,
    Identity,
    Limits,
    Outcome,
    Phase,
    Reply,
    Request,
    Run,
)
from attn_tune.tuner.run.executor import CaseError, ExecutorError, Interrupted
from attn_tune.tuner.run.fleet.ray_actor import Claim, DeviceActor

logger = logging.getLogger(__name__)

# How often a request is sent again after its actor was lost.
_RETRIES = 2
PLACE_S = 60.0
_POLL_S = 0.2
_GRACE_S = 5.0


class RayExecutor:
    """One actor with one device.

    When the actor or its node is lost, Ray starts the actor elsewhere, and the request is sent again, twice at most. A
    config that takes three actors with it, each of which had its device in order before, is ``crashed``. When no node
    has room for the actor within ``place_s`` seconds, the executor is lost (``ExecutorError``).
    """

    def __init__(
        self,
        *,
        options: Mapping[str, Any],
        limits: Limits | None = None,
        environment: Mapping[str, str] | None = None,
        interrupt: Callable[[], bool] = lambda: False,
        place_s: float = PLACE_S,
    ):
        """``options`` are the actor's: its resources. ``environment`` is added to the worker's environment."""
        import ray

        self.interrupt = interrupt
        self.on_phase: Callable[[Phase | None], object] = lambda phase: None
        self._ray: Any = ray
        self._place_s = place_s
        self._options = dict(options)
        # Ray describes neither its exceptions nor classes made into actors to a type checker.
        groups = {"control": 1, "watch": 1}
        actor = self._ray.remote(max_restarts=-1, max_task_retries=0, concurrency_groups=groups, **options)(DeviceActor)
        self._actor = actor.remote(limits or Limits(), dict(environment or {}))
        self._identity: Identity | None = None
        self._expected: tuple[Sequence[ConfigRef], Device] | None = None
        self._placed = False
        # A call that the actor answers when it enters another phase than the one that was seen last.
        self._watching: Any = None
        self._seen = 0

    def identify(self) -> Identity:
        """See ``Executor.identify``. Without the device's uuid: Ray may give the actor another one."""
        self._place()
        found = self._ask(Identify())
        assert isinstance(found, Identity), found
        evidence = tuple((name, text) for name, text in found.device.evidence if name != "uuid")
        device = dataclasses.replace(found.device, evidence=evidence)
        self._identity = dataclasses.replace(found, device=device)
        return self._identity

    def expect(self, refs: Sequence[ConfigRef], device: Device) -> None:
        """See ``Executor.expect``."""
        self._expected = (tuple(refs), device)
        self._actor.expect.remote(*self._expected)

    def run(self, request: Run) -> Outcome:
        """See ``Executor.run``."""
        try:
            outcome = self._ask(request)
        except _Deadly as deadly:
            return Outcome(status=Status.CRASHED, reason=str(deadly))
        assert isinstance(outcome, Outcome), outcome
        return outcome

    def finals(self, request: Finals) -> FinalsOutcome:
        """See ``Executor.finals``."""
        outcome = self._ask(request)
        assert isinstance(outcome, FinalsOutcome), outcome
        return outcome

    def close(self) -> None:
        """See ``Executor.close``."""
        if self._placed:
            self._ray.wait([self._actor.close.remote()], timeout=_GRACE_S)
        self._ray.kill(self._actor)

    def _ask(self, request: Request) -> Reply:
        """One request, one reply, from as many actors as it takes."""
        deaths, lost = 0, ""
        for _ in range(1 + _RETRIES):
            try:
                if lost:
                    self._recover()
                deaths += 1
                return self._send(request)
            except self._ray.exceptions.RayActorError as error:
                lost = _brief(error)
                logger.warning("a Ray actor was lost, and is started again: %s", lost)
        message = f"{1 + _RETRIES} Ray actors were lost one after the other: {lost}"
        if deaths <= _RETRIES or isinstance(request, Identify):
            raise ExecutorError(message)
        raise _Deadly(message)

    def _recover(self) -> None:
        """A new actor with its device in order: what kills it afterwards is not its node's fault."""
        self._place()
        self._send(Identify())
        if self._expected:
            self._actor.expect.remote(*self._expected)

    def _send(self, request: Request) -> Reply:
        try:
            return self._receive(self._actor.serve.remote(request, Claim.of(request, self._identity)), None)
        finally:
            self.on_phase(None)

    def _pass_phase_on(self) -> None:
        """Tell of the phase that the actor has entered. Nothing is sent while it stays in one."""
        if self._watching is None:
            self._watching = self._actor.next_phase.options(concurrency_group="watch").remote(self._seen)
        if not self._ray.wait([self._watching], timeout=0)[0]:
            return
        answered, self._watching = self._watching, None
        # A lost actor is noticed by the request that it serves.
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._seen, phase = self._ray.get(answered)
            self.on_phase(phase)

    def _place(self) -> None:
        """Wait until the actor runs somewhere.

        Raises:
          ExecutorError: it does not within ``place_s``.
        """
        self._placed = False
        self._watching, self._seen = None, 0
        deadline = time.monotonic() + self._place_s
        reason = f"no node has room for an actor with {self._options}"
        while time.monotonic() < deadline:
            try:
                self._receive(self._actor.ready.remote(), deadline)
            except self._ray.exceptions.ActorDiedError as error:
                raise ExecutorError(f"a Ray actor does not start: {_brief(error)}") from None
            except self._ray.exceptions.RayActorError as error:
                # Ray has not noticed yet that the node is gone.
                reason = _brief(error)
                time.sleep(_POLL_S)
            except TimeoutError:
                break
            else:
                self._placed = True
                return
        raise ExecutorError(f"no Ray actor within {self._place_s:g} s: {reason}")

    def _receive(self, reference: Any, deadline: float | None) -> Any:
        """The reply to a call.

        Raises:
          RayActorError: the actor was lost.
          AttnTuneError: the actor raised it.
          TimeoutError: ``deadline`` passed.
        """
        ray = self._ray
        while not ray.wait([reference], timeout=_POLL_S)[0]:
            if self._placed:
                self._pass_phase_on()
            if self.interrupt():
                self._stop(reference)
                raise Interrupted("interrupted while a Ray actor was at work")
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError
        try:
            return ray.get(reference)
        except ray.exceptions.RayActorError:
            raise
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, AttnTuneError):
                raise error.cause from None
            raise ExecutorError(f"a Ray actor failed: {_brief(error)}") from error
        except ray.exceptions.RayError as error:
            raise ExecutorError(f"a Ray actor failed: {_brief(error)}") from error

    def _stop(self, reference: Any) -> None:
        """End the request in progress; the actor itself only if it does not obey."""
        if not self._placed:
            return
        self._actor.stop.options(concurrency_group="control").remote()
        if not self._ray.wait([reference], timeout=_GRACE_S)[0]:
            with contextlib.suppress(self._ray.exceptions.RayActorError):
                self._ray.kill(self._actor, no_restart=False)


class _Deadly(CaseError):
    """A request that every actor dies of."""


def _brief(error: Exception) -> str:
    """The last line of Ray's long message says most; its first one says who."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:400] if lines else type(error).__name__
