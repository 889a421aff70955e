"""The actor on a node of a Ray cluster: one device behind an ``IsolatedExecutor``. Knows nothing of Ray itself."""

import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from attn_tune.kernels.registry import get_kernel
from attn_tune.schema.device import Device
from attn_tune.schema.errors import AttnTuneError, StorageError, UsageError
from attn_tune.tuner.protocol import (
    ConfigRef,
    Finals,
    Identify,
    Identity,
    Limits,
    Phase,
    Reply,
    Request,
    Run,
)
from attn_tune.tuner.run.executor import CaseError, ExecutorError, Interrupted, IsolatedExecutor
from attn_tune.tuner.run.fleet.lease import Lease, lease_folder

# A caller that is gone must not hold the thread for ever.
_WATCH_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """The origin that the trials of a request will name; the actor checks that it is right.

    ``sources`` are the source hashes of the kernels that the request runs. Without ``identity`` any device will do.
    """

    identity: Identity | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, request: Request, identity: Identity | None) -> "Claim":
        """The claim that the trials of ``request`` will make, by the source that is here."""
        match request:
            case Run():
                refs: tuple[ConfigRef, ...] = (request.ref,)
            case Finals():
                refs = request.refs
            case Identify():
                refs = ()
        if identity is None:
            return cls()
        return cls(
            identity=identity,
            sources={ref.kernel: get_kernel(ref.kernel).source_hash for ref in refs},
        )


class DeviceActor:
    """Serves requests on one device, one at a time; only ``stop`` and ``next_phase`` may be called meanwhile."""

    def __init__(self, limits: Limits, environment: Mapping[str, str]):
        self._stop = threading.Event()
        self._executor = IsolatedExecutor(limits=limits, environment=environment, interrupt=self._stop.is_set)
        self._identity: Identity | None = None
        self._lease: Lease | None = None
        self._phases = 0
        self._phase: Phase | None = None
        self._entered = threading.Condition()
        self._executor.on_phase = self._enter

    def ready(self) -> None:
        """Answer when the actor has its place."""

    def serve(self, request: Request, claim: Claim) -> Reply:
        """The answer to ``request``.

        Raises:
          CaseError, Interrupted: as an executor.
          ExecutorError: the actor's device cannot be used, or must not be.
        """
        self._stop.clear()
        try:
            if self._identity is None:
                self._identity = self._identify()
            if reason := _contradiction(claim, self._identity):
                raise UsageError(reason)
            match request:
                case Run():
                    return self._executor.run(request)
                case Finals():
                    return self._executor.finals(request)
                case Identify():
                    return self._identity
        except (CaseError, Interrupted):
            raise
        except (AttnTuneError, ImportError) as error:
            # No worker (ExecutorError), or a kernel that is not installed on this node.
            raise ExecutorError(f"{socket.gethostname()}: {error}") from None

    def _identify(self) -> Identity:
        """The device, which is leased from now on: sweeps that do not use Ray know nothing of Ray's resources."""
        found = self._executor.identify()
        if uuid := dict(found.device.evidence).get("uuid"):
            lease = Lease(uuid, lease_folder())
            if holder := lease.take():
                raise StorageError(f"{found.device} ({uuid}) is in use by {holder}")
            self._lease = lease
        return found

    def expect(self, refs: Sequence[ConfigRef], device: Device) -> None:
        """See ``Executor.expect``."""
        self._executor.expect(refs, device)

    def stop(self) -> None:
        """Interrupt the request in progress."""
        self._stop.set()

    def next_phase(self, seen: int) -> "tuple[int, Phase | None]":
        """The phase, and its number, once that is above ``seen``; the same again after a while without another one."""
        with self._entered:
            self._entered.wait_for(lambda: self._phases > seen, _WATCH_S)
            return self._phases, self._phase

    def _enter(self, phase: "Phase | None") -> None:
        with self._entered:
            self._phases, self._phase = self._phases + 1, phase
            self._entered.notify_all()

    def close(self) -> None:
        """End the worker, and remove what it left on the disk."""
        self._executor.close()
        if self._lease:
            self._lease.release()


def _contradiction(claim: Claim, found: Identity) -> str:
    """The reason why a trial made here would name a wrong origin; ``""`` if it would not."""
    if claim.identity is None:
        return ""
    for _, name, here, there in found.differences(claim.identity):
        return f"{name} is {here!r} here, and {there!r} in the rest of the sweep"
    for kernel, source in claim.sources.items():
        if get_kernel(kernel).source_hash != source:
            return f"the source of {kernel} differs from that of the sweep; install the same version"
    return ""
