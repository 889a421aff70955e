"""The part that CUPTI and XPlane share: one tracing session over many launches, then split by kernel names."""

import weakref
from collections.abc import Callable, Sequence

from attn_tune.tuner.work.timers.records import Record, split_records
from attn_tune.tuner.work.timers.timer import HELD_BYTES, Flush, Launch, TimerError

type Trace = Callable[[Callable[[], None]], list[Record]]


class TracedTimer:
    """Device time of each launch: the sum of the durations of its kernels, from a trace of the device."""

    wants_repeats = False

    def __init__(self, name: str, trace: Trace):
        self.name = name
        self._trace = trace
        self._names: weakref.WeakKeyDictionary[Callable, tuple[str, ...]] = weakref.WeakKeyDictionary()

    def sample(self, launches: Sequence[Launch], flush: Flush | None) -> list[int]:
        """See ``Timer.sample``. Records that do not fit are measured again, one session a launch."""
        return [ns for group in _groups(launches) for ns in self._session(group, flush)]

    def _session(self, launches: Sequence[Launch], flush: Flush | None) -> list[int]:
        expected = [self._kernels(launch.run, launch.ready) for launch in launches]
        flushed = self._kernels(flush, lambda: flush) if flush is not None else ()
        records = self._checked(launches, flush)
        try:
            return split_records(records, expected, flushed)
        except TimerError:
            return [self._alone(launch, flush) for launch in launches]

    def _alone(self, launch: Launch, flush: Flush | None) -> int:
        if flush is not None:
            _wait(flush())
        records = self._checked([launch], None)
        if not records:
            raise TimerError(f"{self.name} recorded no kernel for a call; time it with another timer")
        return max(1, sum(record.ns for record in records))

    def _checked(self, launches: Sequence[Launch], flush: Flush | None) -> list[Record]:
        """The records of one session, whose outputs are checked after it: checks are kernels too."""
        outputs: list[object] = []
        runs = [launch.ready() for launch in launches]
        records = self._trace(lambda: _run_all(runs, flush, outputs))
        for launch, found in zip(launches, outputs, strict=True):
            launch.check([found])
        return records

    def _kernels(self, run: Callable, ready: Callable[[], Callable]) -> tuple[str, ...]:
        """The kernels that ``run`` launches; traced once, alone, on inputs that ``ready`` has made."""
        if run not in self._names:
            start = ready()
            records = self._trace(lambda: _wait(start()))
            if not records:
                raise TimerError(f"{self.name} recorded no kernel for a call; time it with another timer")
            self._names[run] = tuple(record.name for record in records)
        return self._names[run]


def _groups(launches: Sequence[Launch]) -> list[list[Launch]]:
    """The launches in order, in groups whose outputs may be kept together."""
    groups: list[list[Launch]] = []
    held = 0
    for launch in launches:
        held += launch.output_bytes
        if not groups or held > HELD_BYTES:
            groups.append([])
            held = launch.output_bytes
        groups[-1].append(launch)
    return groups


def _run_all(runs: Sequence[Callable[[], object]], flush: Flush | None, outputs: list[object]) -> None:
    for run in runs:
        if flush is not None:
            flush()
        outputs.append(run())
    _wait(outputs[-1])


def _wait(outputs: object) -> None:
    import jax

    jax.block_until_ready(outputs)
