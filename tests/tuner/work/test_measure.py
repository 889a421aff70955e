"""Measuring: how many samples, when to give up, how finals take turns."""

import itertools
import math
from collections import Counter

import pytest

from attn_tune.schema.conditions import Reading
from attn_tune.schema.device import Device
from attn_tune.tuner.protocol import MeasurePolicy
from attn_tune.tuner.work.gpu_state import nothing
from attn_tune.tuner.work.measure import make_flush, measure, order_of_round, race
from tests.patience import PATIENCE_S


class Clock:
    """A timer that reads the time of a run off the run itself, and notes who ran when."""

    name = "fake"
    wants_repeats = False

    def __init__(self):
        self.order = []

    def sample(self, launches, flush):
        for launch in launches:
            self.order.append(launch.run.ns)
        return [launch.run.ns for launch in launches]


class Timed:
    """A run of a known time."""

    def __init__(self, ns):
        self.ns = ns

    def __call__(self):
        return ()


POLICY = MeasurePolicy(
    samples=9, min_samples=3, early_stops=((3, 3.0),), max_s=PATIENCE_S, rounds=6, rounds_max_s=PATIENCE_S
)


def test_all_samples_of_a_hopeful_config():
    result = measure(Timed(100), timer=Clock(), policy=POLICY, best_ns=50)
    assert result.samples_ns == (100,) * 9
    assert result.protocol.timer == "fake"
    assert not result.protocol.interleaved


def test_a_config_that_is_stopped_early_keeps_its_few_true_samples():
    result = measure(Timed(151), timer=Clock(), policy=POLICY, best_ns=50)
    assert result.samples_ns == (151, 151, 151)


def test_one_slow_sample_does_not_condemn():
    class Hiccup(Clock):
        def sample(self, launches, flush):
            first = not self.order
            return [ns * 100 if first else ns for ns in super().sample(launches, flush)]

    result = measure(Timed(50), timer=Hiccup(), policy=POLICY, best_ns=50)
    assert result.samples_ns == (5000,) + (50,) * 8


def test_later_heats_are_stricter():
    policy = MeasurePolicy(samples=9, early_stops=((3, 2.0), (5, 1.2)), max_s=PATIENCE_S)
    taken = {
        ns: len(measure(Timed(ns), timer=Clock(), policy=policy, best_ns=100).samples_ns) for ns in (250, 150, 110)
    }
    assert taken == {250: 3, 150: 5, 110: 9}


class Gpu:
    """A look at a GPU whose clock is that of a list, one look after the other, then the last for ever."""

    def __init__(self, *clocks, throttle=()):
        self.clocks = list(clocks)
        self.throttle = throttle

    def __call__(self):
        clock = self.clocks.pop(0) if len(self.clocks) > 1 else self.clocks[0]
        return Reading(sm_clock_mhz=clock, temperature_c=50, throttle=self.throttle)


@pytest.mark.parametrize(
    ("gpu", "times"),
    [
        (Gpu(1980), 1),
        (Gpu(1980, 1950), 1),
        (Gpu(1980, 1500, 1500), 2),
        (Gpu(1980, 1500, 1500, 1980, 1980), 3),
        # A power cap comes with the kernel; heat does not.
        (Gpu(1500, throttle=("sw_power_cap",)), 1),
        (Gpu(1500, throttle=("hw_thermal_slowdown",)), 3),
        (nothing, 1),
    ],
)
def test_a_config_is_measured_again_when_the_clock_has_moved(gpu, times):
    clock = Clock()
    result = measure(Timed(100), timer=clock, policy=POLICY, look=gpu)
    assert result.samples_ns == (100,) * 9
    assert len(clock.order) == 9 * times


def test_finals_are_taken_again_and_say_so():
    clock = Clock()
    gpu = Gpu(*[1980] * 3, 1500, *[1980] * 3)
    raced = race([Timed(1), Timed(2)], timer=clock, policy=POLICY, round_id="r", look=gpu)
    assert [m.samples_ns for m in raced.measurements] == [(1,) * 6, (2,) * 6]
    assert len(clock.order) == 2 * 2 * 6
    assert raced.conditions is not None
    assert raced.conditions.repeats == 1
    assert raced.conditions.sm_clock_mhz == (1980, 1980)
    assert raced.conditions.temperature_c == (50, 50)


def test_time_ends_sampling_after_the_fewest():
    policy = MeasurePolicy(samples=1000, min_samples=3, max_s=0.0)
    assert len(measure(Timed(10), timer=Clock(), policy=policy).samples_ns) == 3


def test_rounds_pair():
    clock = Clock()
    a, b, c = Timed(1), Timed(2), Timed(3)
    results = race([a, b, c], timer=clock, policy=POLICY, round_id="r").measurements
    assert [r.samples_ns for r in results] == [(1,) * 6, (2,) * 6, (3,) * 6]
    assert {r.round_id for r in results} == {"r"}
    assert clock.order[:9] == [1, 3, 2, 2, 1, 3, 3, 2, 1]


@pytest.mark.parametrize("count", range(1, 10))
def test_every_run_follows_every_other_and_has_every_place_equally_often(count):
    rounds = count if count % 2 == 0 else 2 * count
    orders = [order_of_round(number, count) for number in range(rounds)]
    assert all(sorted(order) == list(range(count)) for order in orders)
    after = Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert len(after) == count * (count - 1)
    assert set(after.values()) <= {rounds // count}
    places = Counter(place for order in orders for place in enumerate(order))
    assert set(places.values()) == {rounds // count}


def test_short_host_calls_are_repeated():
    class Wanting(Clock):
        wants_repeats = True

    result = measure(Timed(5), timer=Wanting(), policy=POLICY)
    assert result.protocol.calls_per_sample > 1
    assert math.isfinite(result.median_ns)


def test_the_flush_reads_twice_the_cache_and_writes_next_to_nothing():
    """Lines that it wrote would be written back while the next kernel runs, and count as that kernel's time."""
    flush = make_flush(Device(platform="cuda", family="sm_90", variant="nvidia-h200", l2_bytes=2**20))
    memory = flush.func.memory_analysis()
    assert memory.argument_size_in_bytes == 2 * 2**20
    assert memory.output_size_in_bytes <= 8
    assert memory.alias_size_in_bytes == 0
    assert flush().nbytes == 4


def test_a_processor_has_no_flush():
    assert make_flush(Device(platform="cpu", family="x86_64", variant="any")) is None
