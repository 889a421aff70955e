"""Device time of calls of torch: their kernels' by CUPTI through ``torch.profiler``, with a cold cache, interleaved.

It is the same quantity as attn-tune's own timers give: how long the device was busy with the kernels of a call, gaps
between them left out. Kernels that overlap (programmatic dependent launch) count once. Copies and fills by the memory
engines do not count, there as here.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attn_tune.schema.errors import AttnTuneError
from attn_tune.tuner.work.measure import order_of_round


class Span(NamedTuple):
    """One kernel that ran: its name, when it began, and for how long, in microseconds."""

    name: str
    begin: float
    took: float


class Busy(NamedTuple):
    """The time of a call.

    Attributes:
      us: the median over all rounds, in microseconds.
      kernels: the number of kernels of a call; 0 where the host's clock was read.
    """

    us: float
    kernels: int


def median_us(prepared: Callable[[], Callable[[], Any]], rounds: int) -> float:
    """The median time of a call's kernels on the GPU, in microseconds, with a cold cache.

    ``prepared`` makes a call, untimed: that of a backward needs a forward of its own. Three are made and run before.
    """
    for _ in range(3):
        prepared()()
    flush = flush_of_cache()
    samples: list[float] = []
    for _ in range(rounds):
        run = prepared()
        flush()
        samples.append(busy_us(_traced(run)))
    return round(statistics.median(samples), 2)


def race(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Busy]:
    """The times of calls in rounds: each round runs every call once, in an order of its own, behind a flush.

    Without a GPU it is the host's clock that is read, for dry runs.

    Raises:
      AttnTuneError: the trace does not have the flushes and kernels that were launched.
    """
    import torch

    names = list(calls)
    order = [names[i] for number in range(rounds) for i in order_of_round(number, len(names))]
    if not torch.cuda.is_available():
        return _by_host(calls, order)
    flush = flush_of_cache()
    (name_of_flush,) = {span.name for span in _traced(flush)}

    def run() -> None:
        for name in order:
            flush()
            calls[name]()

    found: dict[str, list[list[Span]]] = {name: [] for name in names}
    for name, spans in zip(order, split(_traced(run), name_of_flush, len(order)), strict=True):
        found[name].append(spans)
    return {name: Busy(statistics.median(map(busy_us, runs)), len(runs[-1])) for name, runs in found.items()}


def flush_of_cache() -> Callable[[], Any]:
    """A call that reads twice the L2 cache in one kernel, as attn-tune's timers do: it leaves no line to write back."""
    import torch

    size = 2 * torch.cuda.get_device_properties(0).L2_cache_size
    rows = torch.zeros((size // 2**14, 2**12), dtype=torch.int32, device="cuda")
    return lambda: torch.amax(rows, dim=1)


def split(spans: Iterable[Span], flush: str, count: int) -> list[list[Span]]:
    """The kernels of each of ``count`` calls, which lie between kernels called ``flush``.

    Raises:
      AttnTuneError: there are not so many flushes, or a call has no kernel.
    """
    calls: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: span.begin):
        if span.name == flush:
            calls.append([])
        elif calls:
            calls[-1].append(span)
    if len(calls) != count or not all(calls):
        raise AttnTuneError(
            f"the profiler shows {len(calls)} flushes with {sum(map(bool, calls))} calls behind them, not {count}; "
            "a call whose kernel is that of the flush cannot be timed, and another profiler may be running"
        )
    return calls


def busy_us(spans: Sequence[Span]) -> float:
    """Microseconds in which at least one of the kernels ran."""
    total, end = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.begin):
        total += max(0.0, span.begin + span.took - max(end, span.begin))
        end = max(end, span.begin + span.took)
    return total


def kernel_spans(trace: Mapping[str, Any]) -> list[Span]:
    """The kernels of a trace in Chrome's format, as ``torch.profiler`` exports it."""
    events = trace["traceEvents"]
    return [Span(e["name"], float(e["ts"]), float(e["dur"])) for e in events if e.get("cat") == "kernel"]


def _traced(run: Callable[[], Any]) -> list[Span]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        return kernel_spans(json.loads(path.read_text()))


def _by_host(calls: Mapping[str, Callable[[], Any]], order: Sequence[str]) -> dict[str, Busy]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for name in order:
        start = time.perf_counter()
        calls[name]()
        times[name].append((time.perf_counter() - start) * 1e6)
    return {name: Busy(statistics.median(found), 0) for name, found in times.items()}
