"""Several executors on equal devices, each used from a thread of its own."""

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Self

from attn_tune.schema.device import Device
from attn_tune.schema.errors import UsageError
from attn_tune.tuner.protocol import Identity
from attn_tune.tuner.run.executor import Executor, ExecutorError

logger = logging.getLogger(__name__)


@dataclass
class _Pump[T]:
    """Advances one source; after each item it waits until the reader comes back for more."""

    source: Generator[T]
    items: "queue.Queue[tuple[_Pump[T], T | BaseException | None]]"
    abandoned: threading.Event
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def run(self) -> None:
        end: BaseException | None = None
        try:
            with contextlib.closing(self.source):
                for item in self.source:
                    self.items.put((self, item))
                    self.turn.acquire()
                    if self.abandoned.is_set():
                        break
        except BaseException as error:  # It is the reader's to handle.
            end = error
        self.items.put((self, end))


class Fleet:
    """The executors of a ``sweep`` over more than one device. It owns ``executors`` and closes them.

    One executor is used from the caller's thread. Of several each has a thread that lives as long as the fleet: a
    worker process ends with the thread that started it. ``is_shared`` says whether another sweep measures on the same
    devices now, where that cannot be prevented. ``names`` are those of the devices, for people.
    """

    def __init__(
        self,
        executors: Sequence[Executor],
        is_shared: Callable[[], bool] = lambda: False,
        names: Sequence[str] = (),
    ):
        if not executors:
            raise UsageError("a fleet needs at least one executor")
        self._executors = tuple(executors)
        self._names = tuple(names) or tuple(f"device {place}" for place in range(len(executors)))
        self.is_shared = is_shared
        self._identities: dict[int, Identity] = {}
        self._closed = False
        self._threads = (
            [ThreadPoolExecutor(1, f"device-{i}") for i in range(len(executors))] if len(executors) > 1 else []
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def identify(self) -> Identity:
        """The device and software that all executors have in common. One that cannot be had is left out from now on.

        Raises:
          UsageError: devices or software differ; it names both.
          ExecutorError: no executor can be had.
        """
        if not self._threads:
            self._identities = {0: self._executors[0].identify()}
            return self._identities[0]
        asked = [self._submit(i, executor.identify) for i, executor in enumerate(self._executors)]
        found, lost = {}, []
        for index, future in enumerate(asked):
            try:
                found[index] = future.result()
            except ExecutorError as error:
                lost.append(error)
                logger.warning("going on without one of %d devices: %s", len(asked), error)
        if not found:
            raise lost[0]
        first, *others = found.values()
        for other in others:
            _require_equal(first, other)
        self._identities = found
        return first

    @property
    def executors(self) -> tuple[Executor, ...]:
        """Those that can be used: all, or after ``identify`` those that it found."""
        return tuple(self._executors[i] for i in self._usable())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the devices of ``executors``."""
        return tuple(self._names[i] for i in self._usable())

    def walk[T](
        self,
        make: Callable[[Executor, Device | None], Generator[T]],
        abandoned: threading.Event,
    ) -> Iterator[T]:
        """Yield what ``make`` yields for each executor, in the order in which it comes; that of one stays in order.

        ``make`` also gets the executor's device, with the evidence of that very one; None before ``identify``. Its
        generator is advanced only after the reader has taken its last item and asked for the next of all. When the
        reader leaves, or a generator raises, ``abandoned`` is set and the others are waited for: they must heed it. No
        item may be None.
        """
        sources = {i: make(self._executors[i], self._device(i)) for i in self._usable()}
        if not self._threads:
            yield from sources[0]
            return
        items: queue.Queue[tuple[_Pump[T], T | BaseException | None]] = queue.Queue()
        pumps = {i: _Pump(source, items, abandoned) for i, source in sources.items()}
        futures = [self._submit(i, pump.run) for i, pump in pumps.items()]
        try:
            running = len(pumps)
            while running:
                pump, item = items.get()
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    running -= 1
                    continue
                yield item
                pump.turn.release()
        finally:
            abandoned.set()
            for pump in pumps.values():
                pump.turn.release()
            wait(futures)

    def close(self) -> None:
        """End the workers, busy or not. May be called more than once."""
        if self._closed:
            return
        self._closed = True
        if not self._threads:
            self._executors[0].close()
            return
        for executor in self._executors:
            executor.interrupt = lambda: True
        closing = [self._submit(i, executor.close) for i, executor in enumerate(self._executors)]
        for thread in self._threads:
            thread.shutdown()
        for future in closing:
            future.result()

    def _device(self, index: int) -> Device | None:
        identity = self._identities.get(index)
        return identity.device if identity else None

    def _usable(self) -> list[int]:
        return sorted(self._identities) or list(range(len(self._executors)))

    def _submit(self, index: int, work: Callable[[], Any]) -> Future[Any]:
        return self._threads[index].submit(work)


def _require_equal(first: Identity, other: Identity) -> None:
    if differing := first.differences(other):
        kind = differing[0][0]
        fields = [f"{name} {a!r} and {b!r}" for found, name, a, b in differing if found == kind]
        raise UsageError(
            f"one sweep needs equal {kind}, but {_name(first.device)} and {_name(other.device)} differ in "
            f"{', '.join(fields)}; sweep them one after the other, each with --devices"
        )


def _name(device: Device) -> str:
    evidence = dict(device.evidence)
    return f"{device} ({evidence['uuid']})" if evidence.get("uuid") else str(device)
