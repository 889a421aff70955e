"""Timers: splitting records, reading traces (synthetic GPU and TPU ones, a recorded CPU one), the host clock."""

import types
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import pytest

from attn_tune.schema.errors import UsageError
from attn_tune.tuner.work.timers import host
from attn_tune.tuner.work.timers.choose import choose_timer
from attn_tune.tuner.work.timers.cupti import to_records
from attn_tune.tuner.work.timers.host import HostTimer
from attn_tune.tuner.work.timers.records import Record, split_records
from attn_tune.tuner.work.timers.timer import Launch, TimerError
from attn_tune.tuner.work.timers.traced import TracedTimer
from attn_tune.tuner.work.timers.xplane import device_records


def test_a_launch_is_the_sum_of_its_kernels_without_the_flush():
    records = to_records([("fill", 9.0), ("dq", 0.25), ("dkv", 0.5), ("fill", 8.0), ("fused", 0.000001)])
    assert split_records(records, [("dq", "dkv"), ("fused",)], ("fill",)) == [750_000, 1]


@pytest.mark.parametrize("names", [["fill", "dq"], ["fill", "dkv", "dq"], ["fill", "dq", "dkv", "dkv"], []])
def test_records_that_do_not_fit_are_refused(names):
    with pytest.raises(TimerError, match="expected 3 kernel records"):
        split_records([Record(n, 1) for n in names], [("dq", "dkv")], ("fill",))


class Device:
    """A device that records what runs on it. ``lose`` drops that many records of sessions with many launches."""

    def __init__(self, lose: int = 0):
        self.lose = lose
        self.records: list[Record] = []
        self.sessions = 0

    def launch(self, *records: Record):
        def run():
            self.records.extend(records)
            return ()

        return run

    def trace(self, work):
        self.sessions += 1
        self.records = []
        work()
        return self.records[: -self.lose] if self.lose and len(self.records) > 2 else self.records


def test_one_session_times_many_launches():
    device = Device()
    timer = TracedTimer("cupti", device.trace)
    a, b = device.launch(Record("a", 10), Record("a2", 5)), device.launch(Record("b", 70))
    flush = device.launch(Record("fill", 1000))
    launches = [Launch(run=a), Launch(run=b), Launch(run=a)]
    assert timer.sample(launches, flush) == [15, 70, 15]
    assert device.sessions == 4  # Three to learn the names, one for all launches.
    assert timer.sample(launches, flush) == [15, 70, 15]
    assert device.sessions == 5


def test_lost_records_cost_sessions_not_samples():
    device = Device(lose=1)
    timer = TracedTimer("cupti", device.trace)
    a, b = device.launch(Record("a", 10)), device.launch(Record("b", 70))
    flush = device.launch(Record("fill", 1000))
    assert timer.sample([Launch(run=a), Launch(run=b)], flush) == [10, 70]


def test_a_call_without_kernels_is_an_error():
    device = Device()
    with pytest.raises(TimerError, match="recorded no kernel"):
        TracedTimer("cupti", device.trace).sample([Launch(run=device.launch())], None)


@dataclass
class Named:
    """A plane or a line of a trace."""

    name: str
    lines: list = field(default_factory=list)
    events: list = field(default_factory=list)


@dataclass
class Event:
    """An event of a trace."""

    name: str
    start_ns: float
    duration_ns: float


GPU = [
    Named("/host:CPU", lines=[Named("python", events=[Event("f", 0, 99)])]),
    Named(
        "/device:GPU:0",
        lines=[
            Named(
                "Stream #14(Compute)",
                events=[Event("fused_b", 300, 40), Event("MemcpyD2D", 250, 9)],
            ),
            Named("Stream #15(Compute)", events=[Event("fused_a", 100, 60.4)]),
            Named("XLA Ops", events=[Event("fused_a", 100, 60.4)]),
        ],
    ),
]
TPU = [
    Named(
        "/device:TPU:0",
        lines=[
            Named("XLA Modules", events=[Event("jit_f(77)", 10, 500), Event("jit_f(77)", 900, 510)]),
            Named("XLA Ops", events=[Event("fusion.1", 10, 100)]),
        ],
    )
]


def test_gpu_traces_give_kernels_in_the_order_they_began():
    assert device_records(GPU) == [Record("fused_a", 60), Record("fused_b", 40)]


def test_tpu_traces_give_modules():
    assert device_records(TPU) == [Record("jit_f", 500), Record("jit_f", 510)]


def test_a_recorded_cpu_trace_has_no_device_plane(tmp_path):
    with jax.profiler.trace(str(tmp_path)):
        jax.block_until_ready(jax.jit(lambda x: x @ x)(jnp.ones((8, 8))))
    (path,) = tmp_path.rglob("*.xplane.pb")
    planes = list(jax.profiler.ProfileData.from_file(str(path)).planes)
    assert any(plane.name == "/host:CPU" for plane in planes)
    with pytest.raises(TimerError, match="no device plane"):
        device_records(planes)


def test_the_host_clock_averages_repeats_and_leaves_the_flush_out(monkeypatch):
    now = [0]

    def slow(ns):
        def run():
            now[0] += ns
            return ()

        return run

    monkeypatch.setattr(host, "time", types.SimpleNamespace(perf_counter_ns=lambda: now[0]))
    assert HostTimer().sample([Launch(run=slow(10), repeats=3)], slow(200)) == [10]
    assert now == [230]


def test_the_cpu_uses_the_host_clock():
    assert choose_timer().name == "host"
    with pytest.raises(UsageError, match="unknown timer 'sundial'"):
        choose_timer("sundial")
    with pytest.raises(TimerError):
        choose_timer("xplane")
