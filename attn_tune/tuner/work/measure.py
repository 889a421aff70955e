"""Measuring: warm up, probe, sample with a cold cache; and the finals, where configs take turns."""

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attn_tune.schema.conditions import Conditions, Reading, conditions_of
from attn_tune.schema.device import Device
from attn_tune.schema.trial import Measurement, Protocol
from attn_tune.tuner.protocol import MeasurePolicy
from attn_tune.tuner.work.gpu_state import Look, nothing
from attn_tune.tuner.work.timers.timer import Check, Flush, Launch, Timed, Timer, unchecked

# A call without arguments, or one whose inputs are made for each run.
type Run = Callable[[], Any] | Timed

# A host sample shorter than this is mostly the clock's and the scheduler's own noise.
_HOST_SAMPLE_NS = 1_000_000
_MAX_REPEATS = 1000
# Without a known cache size, twice the largest last-level cache of today's accelerators (B200: 126 MB).
_FALLBACK_FLUSH_BYTES = 256 * 2**20


def make_flush(device: Device) -> Flush | None:
    """A function that pushes everything else out of the last-level cache; None where that means nothing.

    It only reads: lines that it wrote would be written back while the next kernel runs, and their time would count as
    that kernel's. On an H200 this made a read of 64 MB 24 us instead of 17.
    """
    if device.platform not in ("cuda", "rocm"):
        return None
    import jax
    import jax.numpy as jnp

    buffer = jnp.zeros((max(1, (2 * device.l2_bytes or _FALLBACK_FLUSH_BYTES) // 4),), jnp.uint32)
    return functools.partial(jax.jit(jnp.max).lower(buffer).compile(), buffer)


@dataclass(frozen=True, kw_only=True)
class Raced:
    """The measurements of a race, in the order asked, and what the device went through meanwhile.

    Attributes:
      measurements: one a config.
      conditions: the state of the device; None if unknown.
    """

    measurements: tuple[Measurement, ...]
    conditions: Conditions | None = None


def measure(
    run: Run,
    *,
    timer: Timer,
    policy: MeasurePolicy,
    flush: Flush | None = None,
    best_ns: float | None = None,
    look: Look = nothing,
    check: Check = unchecked,
) -> Measurement:
    """Time ``run``, once more if the device's clock has moved meanwhile; ``check`` is given all timed outputs.

    A config that is stopped early (see ``MeasurePolicy``) keeps its few samples: they are true, just few.
    """
    launch = _prepare(run, timer, policy, check)
    samples: list[int] = []
    for _ in range(1 + policy.most_repeats):
        before = look()
        samples = _sample(launch, timer, policy, flush, best_ns)
        if _steady([before, look()], policy):
            break
    return _measurement(samples, timer, policy, launch, flush, interleaved=False)


def _sample(
    launch: Launch,
    timer: Timer,
    policy: MeasurePolicy,
    flush: Flush | None,
    best_ns: float | None,
) -> list[int]:
    """Samples of one launch: as many as each early stop needs while it may win, then the rest."""
    samples = timer.sample([launch], flush)
    start = time.monotonic()
    for count, ratio in policy.early_stops:
        limit = math.inf if best_ns is None else ratio * best_ns
        # One slow sample may come from another process: a config is stopped only by all of them.
        while len(samples) < min(count, policy.samples) and min(samples) > limit:
            samples += timer.sample([launch], flush)
        if min(samples) > limit:
            return samples
    while len(samples) < policy.samples:
        # One session may hold many launches; the first ones tell how many fit.
        batch = 1 if len(samples) < policy.min_samples else policy.samples - len(samples)
        if len(samples) >= policy.min_samples:
            pace = (time.monotonic() - start) / (len(samples) - 1 or 1)
            room = policy.max_s - (time.monotonic() - start)
            batch = min(batch, int(room / pace) if pace > 0 else batch)
            if batch < 1:
                break
        samples += timer.sample([launch] * batch, flush)
    return samples


def race(
    runs: Sequence[Run],
    *,
    timer: Timer,
    policy: MeasurePolicy,
    flush: Flush | None = None,
    round_id: str,
    look: Look = nothing,
    checks: Sequence[Check] = (),
) -> Raced:
    """Time ``runs`` in rounds: each round samples every run once, in an order of its own (``order_of_round``).

    Sample ``i`` of each belongs to round ``i``: clock and temperature drift hits all alike, so they may be paired.
    If the clock has moved all the same, everything is taken again. ``checks`` are given the timed outputs, each those
    of its run; without them nothing is checked.
    """
    launches = [
        _prepare(run, timer, policy, check) for run, check in zip(runs, checks or [unchecked] * len(runs), strict=True)
    ]
    samples, readings = _rounds(launches, timer, policy, flush, look)
    repeats = 0
    while repeats < policy.most_repeats and not _steady(readings, policy):
        samples, readings = _rounds(launches, timer, policy, flush, look)
        repeats += 1
    measurements = tuple(
        _measurement(ns, timer, policy, launch, flush, interleaved=True, round_id=round_id)
        for ns, launch in zip(samples, launches, strict=True)
    )
    seen = [reading for reading in readings if reading is not None]
    return Raced(measurements=measurements, conditions=conditions_of(seen, repeats=repeats))


def _rounds(
    launches: Sequence[Launch],
    timer: Timer,
    policy: MeasurePolicy,
    flush: Flush | None,
    look: Look,
) -> tuple[list[list[int]], list[Reading | None]]:
    samples: list[list[int]] = [[] for _ in launches]
    readings = []
    start = time.monotonic()
    for number in range(policy.rounds):
        if number >= policy.min_samples and time.monotonic() - start > policy.rounds_max_s:
            break
        order = order_of_round(number, len(launches))
        times = timer.sample([launches[i] for i in order], flush)
        readings.append(look())
        for i, ns in zip(order, times, strict=True):
            samples[i].append(ns)
    return samples, readings


def order_of_round(number: int, count: int) -> list[int]:
    """In which order round ``number`` takes its ``count`` runs.

    What ran before matters: on an H200 the same forward takes 246 us after one kernel and 255 us after another. So each
    run comes in each place, and after each other one, equally often: in every ``count`` rounds, twice as many where
    ``count`` is odd (Williams, "Experimental designs balanced for the estimation of residual effects of treatments",
    1949).
    """
    there, back = range(-(-count // 2)), range(count - 1, count // 2 - 1 + count % 2, -1)
    zigzag = [run for pair in itertools.zip_longest(there, back) for run in pair if run is not None]
    order = [(run + number) % count for run in zigzag]
    return order[::-1] if count % 2 and number // count % 2 else order


def _steady(readings: Sequence[Reading | None], policy: MeasurePolicy) -> bool:
    conditions = conditions_of([reading for reading in readings if reading is not None])
    return conditions is None or conditions.steady(policy.clock_tolerance)


def _prepare(run: Run, timer: Timer, policy: MeasurePolicy, check: Check = unchecked) -> Launch:
    """Warm ``run`` up and decide how often one sample repeats it."""
    import jax

    timed = run if isinstance(run, Timed) else Timed(run=run)
    took, size = [], 0
    for _ in range(max(1, policy.warmup)):
        once = timed.ready()
        start = time.perf_counter_ns()
        outputs = jax.block_until_ready(once())
        took.append(time.perf_counter_ns() - start)
        size = sum(x.nbytes for x in jax.tree.leaves(outputs))
    if not timer.wants_repeats:
        return Launch(run=timed.run, refresh=timed.refresh, check=check, output_bytes=size)
    repeats = -(-_HOST_SAMPLE_NS // max(1, round(statistics.median(took))))
    repeats = max(1, min(_MAX_REPEATS, repeats))
    return Launch(run=timed.run, refresh=timed.refresh, repeats=repeats, check=check, output_bytes=size)


def _measurement(
    samples: Sequence[int],
    timer: Timer,
    policy: MeasurePolicy,
    launch: Launch,
    flush: Flush | None,
    *,
    interleaved: bool,
    round_id: str = "",
) -> Measurement:
    protocol = Protocol(
        timer=timer.name,
        warmup=max(1, policy.warmup),
        # Behind one flush only the first of several calls finds the cache cold.
        flush_l2=flush is not None and launch.repeats == 1,
        calls_per_sample=launch.repeats,
        interleaved=interleaved,
    )
    return Measurement(samples_ns=tuple(samples), protocol=protocol, round_id=round_id)
