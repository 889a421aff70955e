"""Compiling ahead: while the worker measures, the processor's other cores compile the configs that come next."""

import importlib.util
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attn_tune.kernels.registry import get_kernel
from attn_tune.kernels.spec import COMPILE_ANYWHERE
from attn_tune.ops.registry import get_op
from attn_tune.schema.device import Device
from attn_tune.tuner.protocol import ConfigRef, Lowered, Outcome
from attn_tune.tuner.run.helper_processes import HelperGroup, HelperLost

logger = logging.getLogger(__name__)

_MOST_PROCESSES = 64
# The worker and the sweep keep a core between them: both mostly wait, and helpers are nicer than they are.
_CORES_KEPT = 1
# How many configs, per process, may be ready of those that come before the next to be lowered.
_DEPTH = 6
_CONFIG_S = 180.0
_POLL_S = 0.1
_MOST_LOST = 8
_DRIVER = Path("/dev/nvidiactl")
# Lowering needs no device, and must not take memory on one.
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}

type _Key = tuple[Any, ...]
# None: the helper could not say, so the worker must find out.
type Answer = Lowered | Outcome | None


@dataclass(frozen=True, slots=True)
class _Answered:
    ref: ConfigRef
    what: Answer


def helper_count(device: Device | None, cores: int) -> int:
    """The number of helper processes worth starting: none without spare cores, a CUDA device and Triton.

    Before the device is known, the driver's control file tells whether there may be one.
    """
    may_be_cuda = _DRIVER.exists() if device is None else device.compute_capability is not None
    if not may_be_cuda or cores <= _CORES_KEPT + 1:
        return 0
    if importlib.util.find_spec("triton") is None:
        return 0
    return min(cores - _CORES_KEPT, _MOST_PROCESSES)


def usable_cores() -> int:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _lowers_here(ref: ConfigRef) -> bool:
    """Whether a helper can lower it: its compiler needs no device; a program for several devices needs them all."""
    needs_none = get_kernel(ref.kernel).backend in COMPILE_ANYWHERE
    return needs_none and not get_op(ref.signature.op).mesh(ref.runs_on)


class CompileAhead:
    """Lowers what is expected, for kernels whose compilers need no device and take a second a config or more.

    It only saves time: a helper that fails is no config's result, and the worker compiles what it does not get.
    Each helper process is owned by a thread here, which kills one that hangs; after a few losses there is no more help.
    """

    def __init__(
        self,
        *,
        environment: Mapping[str, str] | None = None,
        cores: int | None = None,
        config_s: float = _CONFIG_S,
        on_ready: Callable[[ConfigRef, Lowered], object] = lambda ref, lowered: None,
    ):
        """``config_s`` is the time that one config may take. ``on_ready`` is called on a helper's thread.

        Nothing is started yet.
        """
        self._environment = {**(environment or {}), **_ENVIRONMENT}
        self._cores = usable_cores() if cores is None else cores
        self._config_s = config_s
        self._on_ready = on_ready
        self._changed = threading.Condition()
        self._pending: OrderedDict[_Key, tuple[ConfigRef, int]] = OrderedDict()
        self._places: dict[_Key, int] = {}
        self._busy: set[_Key] = set()
        self._ready: OrderedDict[_Key, _Answered] = OrderedDict()
        self._threads: list[threading.Thread] = []
        self._group: HelperGroup | None = None
        self._closed = threading.Event()
        self._lost = 0
        self.lowered = 0

    @property
    def helpers(self) -> int:
        """The number of helpers."""
        return len(self._threads)

    def warm_up(self, device: Device | None = None) -> None:
        """Start the helpers, if there is or may be a device for them. Their imports take seconds."""
        count = helper_count(device, self._cores)
        if self._threads or not count or self._closed.is_set():
            return
        try:
            self._group = HelperGroup(count, self._environment)
        except OSError as error:
            self._give_up(f"a helper process cannot be started: {error}")
            return
        for helper in self._group.helpers:
            thread = threading.Thread(target=self._help, args=(helper,), name="compile-ahead", daemon=True)
            self._threads.append(thread)
            thread.start()

    def expect(self, refs: Sequence[ConfigRef], device: Device) -> None:
        """Make ``refs`` what comes next, in this order; what was expected before and not begun is dropped."""
        wanted = [ref for ref in refs if _lowers_here(ref)]
        if wanted:
            self.warm_up(device)
        if not self._threads:
            return
        capability = device.compute_capability or 0
        with self._changed:
            coming = {ref.key: (ref, capability) for ref in wanted}
            self._places = {key: place for place, key in enumerate(coming)}
            for key in self._ready.keys() - coming.keys():
                del self._ready[key]
            self._pending.clear()
            if self._closed.is_set():
                return
            known = self._busy | self._ready.keys()
            self._pending.update({key: job for key, job in coming.items() if key not in known})
            self._changed.notify_all()

    def take(self, ref: ConfigRef, interrupt: Callable[[], bool] = lambda: False) -> Answer:
        """The outcome of ``ref``; waits for it when it was expected. It is forgotten here.

        Raises:
          InterruptedError: ``interrupt()`` turned true while waiting.
        """
        key = ref.key
        with self._changed:
            while key in self._pending or key in self._busy:
                if self._closed.is_set():
                    return None
                if interrupt():
                    raise InterruptedError
                self._changed.wait(_POLL_S)
            answered = self._ready.pop(key, None)
            self._changed.notify_all()
            return answered.what if answered else None

    def ready(self, besides: Container[_Key] = ()) -> list[tuple[ConfigRef, Lowered]]:
        """Programs that were lowered and not taken yet, in the order it was done; without the keys ``besides``."""
        with self._changed:
            return [
                (answered.ref, answered.what)
                for key, answered in self._ready.items()
                if isinstance(answered.what, Lowered) and key not in besides
            ]

    def close(self) -> None:
        """Kill the helpers. May be called more than once."""
        self._closed.set()
        with self._changed:
            self._pending.clear()
            self._changed.notify_all()
        # Each ends its own helper first: what the group has reaped may be another process by its number.
        for thread in self._threads:
            thread.join()
        if self._group:
            self._group.close()

    def _help(self, helper: Any) -> None:
        alone = None
        try:
            while (job := self._next()) is not None:
                try:
                    answer = helper.ask(job, self._config_s, self._closed.is_set)
                except HelperLost as error:
                    helper.kill()
                    self._done(job[0], None)
                    self._lose(job[0], error)
                    if alone:
                        alone.close()
                    if self._closed.is_set():
                        return
                    alone = HelperGroup(1, self._environment)
                    helper = alone.helpers[0]
                    continue
                if isinstance(answer, str):
                    logger.debug("%s %s: %s", job[0].kernel, job[0].config, answer)
                self._done(job[0], None if isinstance(answer, str) else answer)
        except InterruptedError:
            return  # Closed meanwhile.
        except OSError as error:
            self._give_up(f"a helper process cannot be started: {error}")
        finally:
            helper.kill()
            if alone:
                alone.close()

    def _done(self, ref: ConfigRef, answer: Answer) -> None:
        with self._changed:
            self._busy.discard(ref.key)
            self._ready[ref.key] = _Answered(ref, answer)
            self.lowered += isinstance(answer, Lowered)
            self._changed.notify_all()
        if isinstance(answer, Lowered):
            self._on_ready(ref, answer)

    def _next(self) -> tuple[ConfigRef, int] | None:
        """The config to lower next, once there is room for it; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed.is_set() or self._has_room())
            if self._closed.is_set():
                return None
            key, job = self._pending.popitem(last=False)
            self._busy.add(key)
            return job

    def _has_room(self) -> bool:
        # What comes later may be ready too: it must not keep the next from being lowered.
        first = next(iter(self._pending), None)
        if first is None:
            return False
        earlier = sum(self._places.get(key, -1) < self._places[first] for key in self._ready)
        return earlier < _DEPTH * self.helpers

    def _lose(self, ref: ConfigRef, error: HelperLost) -> None:
        logger.debug("compiling %s %s ahead: %s", ref.kernel, ref.config, error)
        with self._changed:
            self._lost += 1
            enough = self._lost >= _MOST_LOST
        if enough:
            self._give_up(str(error))

    def _give_up(self, reason: str) -> None:
        with self._changed:
            first = not self._closed.is_set()
            self._closed.set()
            self._pending.clear()
            self._changed.notify_all()
        if first:
            logger.warning("configs are no longer compiled ahead, which only costs time: %s", reason)
