"""Compiling ahead: while the worker measures, the processor's other cores compile the configs that come next."""

import collections
import importlib.util
import logging
import os
import threading
from collections.abc import Mapping, Sequence

from attn_tune.kernels.registry import get_kernel
from attn_tune.schema.config import config_digest
from attn_tune.schema.device import Device
from attn_tune.tuner.process import WorkerDied, WorkerLate, WorkerProcess
from attn_tune.tuner.protocol import ConfigRef

logger = logging.getLogger(__name__)

_MOST_PROCESSES = 16
# The worker and the sweep keep a core each.
_CORES_KEPT = 2
# How many configs, per process, may be ready before the worker asks for them.
_DEPTH = 4
_CONFIG_S = 180.0
_MOST_LOST = 8
# Lowering needs no device, and must not take memory on one.
_ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}

type _Key = tuple[str, str, str, str, str]


def helper_count(device: Device, cores: int) -> int:
    """How many processes are worth starting: none without spare cores, a CUDA device and Triton."""
    if device.compute_capability is None or cores <= _CORES_KEPT:
        return 0
    if importlib.util.find_spec("triton") is None:
        return 0
    return min(cores - _CORES_KEPT, _MOST_PROCESSES)


def usable_cores() -> int:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class CompileAhead:
    """Keeps Triton's cache on disk ahead of the worker, for kernels written in Triton.

    It only saves time: whatever happens to a helper is nobody's result, and the worker compiles what it does not find.
    Each helper process is owned by a thread here, which kills one that hangs; after a few losses there is no more help.
    """

    def __init__(
        self,
        *,
        environment: Mapping[str, str] | None = None,
        cores: int | None = None,
        config_s: float = _CONFIG_S,
    ):
        """``config_s`` is the time that one config may take. Nothing is started yet."""
        self._environment = {**(environment or {}), **_ENVIRONMENT}
        self._cores = usable_cores() if cores is None else cores
        self._config_s = config_s
        self._changed = threading.Condition()
        self._pending: collections.OrderedDict[_Key, tuple[ConfigRef, int]] = (
            collections.OrderedDict()
        )
        self._ready: set[_Key] = set()
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        self._lost = 0
        self.lowered = 0

    @property
    def helpers(self) -> int:
        """How many helpers there are."""
        return len(self._threads)

    def expect(self, refs: Sequence[ConfigRef], device: Device) -> None:
        """Makes ``refs`` what comes next, in this order; what was expected before and not begun is dropped."""
        count = helper_count(device, self._cores)
        wanted = [ref for ref in refs if count and get_kernel(ref.kernel).backend == "triton"]
        with self._changed:
            self._pending.clear()
            self._ready.clear()
            if self._closed.is_set():
                return
            capability = device.compute_capability or 0
            self._pending.update({_key(ref): (ref, capability) for ref in wanted})
            for _ in range(self.helpers, min(count, len(wanted))):
                thread = threading.Thread(target=self._help, name="compile-ahead", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify_all()

    def reached(self, ref: ConfigRef) -> None:
        """The worker takes ``ref`` up: it is not worth compiling here any more."""
        if not self._threads:
            return
        with self._changed:
            self._pending.pop(_key(ref), None)
            self._ready.discard(_key(ref))
            self._changed.notify_all()

    def close(self) -> None:
        """Kills the helpers. May be called more than once."""
        self._closed.set()
        with self._changed:
            self._pending.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _help(self) -> None:
        helper = None
        try:
            while (job := self._next()) is not None:
                helper = helper or WorkerProcess(self._environment, "attn_tune.tuner.lowering")
                try:
                    helper.send(job)
                    said = helper.receive(self._config_s, self._closed.is_set)
                except (WorkerDied, WorkerLate) as error:
                    helper.kill()
                    helper = None
                    self._lose(job[0], error)
                    continue
                self.lowered += 1
                if said:
                    logger.debug("%s %s: %s", job[0].kernel, job[0].config, said)
        except InterruptedError:
            return  # Closed meanwhile.
        except OSError as error:
            self._give_up(f"a helper process cannot be started: {error}")
        finally:
            if helper:
                helper.kill()

    def _next(self) -> tuple[ConfigRef, int] | None:
        """What to lower next, once there is room for it; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed.is_set() or self._has_room())
            if self._closed.is_set():
                return None
            key, job = self._pending.popitem(last=False)
            self._ready.add(key)
            return job

    def _has_room(self) -> bool:
        return bool(self._pending) and len(self._ready) < _DEPTH * self.helpers

    def _lose(self, ref: ConfigRef, error: WorkerDied | WorkerLate) -> None:
        how = str(error) or f"no end within {self._config_s:g} s"
        logger.debug("compiling %s %s ahead: %s", ref.kernel, ref.config, how)
        with self._changed:
            self._lost += 1
            enough = self._lost >= _MOST_LOST
        if enough:
            self._give_up(how)

    def _give_up(self, reason: str) -> None:
        with self._changed:
            first = not self._closed.is_set()
            self._closed.set()
            self._pending.clear()
            self._changed.notify_all()
        if first:
            logger.warning(
                "configs are no longer compiled ahead, which only costs time: %s", reason
            )


def _key(ref: ConfigRef) -> _Key:
    return ref.kernel, ref.signature.text, ref.direction, ref.part, config_digest(ref.config)
