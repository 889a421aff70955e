"""Several iterators, each advanced in a thread of its own, as one."""

import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

type Submit = Callable[[Callable[[], None]], Future[None]]


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


def interleaved[T](
    sources: Sequence[Generator[T]], submits: Sequence[Submit], abandoned: threading.Event
) -> Iterator[T]:
    """The items of all ``sources``, in the order in which they come; those of one source stay in order.

    ``submits[i]`` runs a function in the thread that advances ``sources[i]``. A source is advanced only after the
    reader has taken its last item and asked for the next of all. When the reader leaves, or a source raises,
    ``abandoned`` is set and the others are waited for: they must heed it. No item may be None.
    """
    items: queue.Queue[tuple[_Pump[T], T | BaseException | None]] = queue.Queue()
    pumps = [_Pump(source, items, abandoned) for source in sources]
    futures = [submit(pump.run) for pump, submit in zip(pumps, submits, strict=True)]
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
        for pump in pumps:
            pump.turn.release()
        wait(futures)
