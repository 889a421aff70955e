"""The benchmark of tuning speed: what counts as a config that a tuner handled."""

import types

import pytest
from tuning_peers import autotuned_step, candidates_counted
from tuning_sweep import sweep_step


def trial(status="ok", stage="search", part="", median_us=None, compile_ms=None):
    return {
        "status": status,
        "stage": stage,
        "config": "{}",
        "part": part,
        "median_us": median_us,
        "compile_ms": compile_ms,
    }


def test_a_sweep_counts_what_a_worker_tried_and_nothing_else():
    trials = [
        trial(median_us=9.0, compile_ms=500.0),
        trial(part="dq", median_us=0.1, compile_ms=250.0),
        trial("timed_out", part="dq"),
        trial("incorrect", part="dkv", compile_ms=250.0),
        trial("unsupported", part="dkv"),
        trial(stage="final", median_us=8.0, compile_ms=500.0),
    ]
    found = sweep_step("bwd", trials, {"compile": 1500.0, "measure": 20.0})
    assert found.statuses == {"ok": 2, "timed_out": 1, "incorrect": 1}
    assert found.configs == 4
    assert found.best_us == 8.0  # a part's time is not the direction's
    assert found.phases_s == {"compile": 1.5, "measure": 0.02}
    assert found.detail == {
        "configs_by_part": {"whole": 1, "dq": 2, "dkv": 1},
        "refused_before_compiling": 1,
        "finals": 1,
        "worker_compile_s": 1.0,
    }


def timing(median_ms, lower_ms=100.0, compile_ms=50.0):
    return types.SimpleNamespace(
        median_evaluation_time_ms=median_ms, lower_time_ms=lower_ms, compile_time_ms=compile_ms
    )


def test_exceptions_among_timings_count_as_configs_that_failed():
    timings = {
        "a": timing(2.0),
        "b": ValueError("too big"),
        "c": timing(1.5),
        "d": TimeoutError(),
        "e": ValueError("too big"),
    }
    found = autotuned_step("FlashAttentionVjp", timings, 1.0, 3.0)
    assert (found.direction, found.configs, found.wall_s) == ("bwd", 5, 2.0)
    assert found.statuses == {"ok": 2, "ValueError": 2, "TimeoutError": 1}
    assert found.best_us == 1500.0
    assert found.detail["lower_thread_s"] == pytest.approx(0.2)
    nothing = autotuned_step("FlashAttention", {"b": ValueError()}, 1.0, 3.0)
    assert (nothing.direction, nothing.configs, nothing.best_us) == ("fwd", 1, None)


class Chooser:
    """As much of a selector as is listened to."""

    def __init__(self):
        self.on_event = None
        self.tuner = types.SimpleNamespace(measure=self.measure)

    @staticmethod
    def measure(config):
        if config == "bad":
            raise RuntimeError("out of shared memory")
        return config

    def choose(self, candidates):
        self.on_event("autotune_start", candidates=len(candidates), platform="gpu")
        for candidate in candidates:
            try:
                self.tuner.measure(candidate)
            except RuntimeError:
                continue
        self.on_event("autotune_finish", cfg=candidates[0])


def test_candidates_are_counted_whether_they_run_or_not():
    chooser = Chooser()
    measure = chooser.tuner.measure
    with candidates_counted(chooser) as seen:
        chooser.choose([0.5, "bad", 0.25])
    assert (seen.announced, seen.times_s) == (3, [0.5, 0.25])
    assert chooser.on_event is None
    assert chooser.tuner.measure is measure
