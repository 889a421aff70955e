"""A sweep that only compiles, over a fake compiler: every result is a trial, predictions choose the whole programs."""

import dataclasses
import threading

import pytest

from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.flash_attention.walk import is_default
from attn_tune.schema import Environment, Shortage, Status
from attn_tune.schema.trial import WHOLE, Trial
from attn_tune.tuner.offline.compile_sweep import sweep_target
from attn_tune.tuner.offline.compilers.protocol import Compiled
from attn_tune.tuner.offline.target import find_target
from attn_tune.tuner.plan.case import GridPoint
from attn_tune.tuner.plan.planner import make_plan
from attn_tune.tuner.plan.strategies.effort import Effort
from tests.tuner.offline.test_predict import make_schedule

TARGET = find_target("sm_90")
LIMIT = 150_000


class OwnCompiler:
    """Compiles at once, in order; what needs more shared memory than LIMIT does not fit."""

    def __init__(self):
        self.compiled = []
        self.wholes = []
        # What whole programs come to, the first ones first; then they compile.
        self.whole_fates = []

    def compile(self, refs, *, skip=lambda ref: None, should_stop, whole=False, limit_s=None):
        for index, ref in enumerate(refs):
            if should_stop():
                return
            yield index, self._compile_whole(ref) if whole else skip(ref) or self._compile(ref)

    def _compile_whole(self, ref):
        self.wholes.append(ref.config)
        if self.whole_fates:
            return self.whole_fates.pop(0)
        return Compiled(status=Status.COMPILED, compile_ms=2.0)

    def _compile(self, ref):
        self.compiled.append((ref.part, ref.config))
        own = ref.config[ref.part] if ref.part else ref.config
        needed = max(_needs(c) for c in ([own] if "block_q" in own else own.values()))
        if needed > LIMIT:
            lack = Shortage(resource="shared memory", needed=needed, limit=LIMIT)
            return Compiled(status=Status.OUT_OF_RESOURCES, reason="too much", shortage=lack)
        return Compiled(status=Status.COMPILED, compile_ms=1.0)


def _needs(config):
    return 600 * config["num_stages"] * (config["block_q"] + config["block_k"])


def make_case_plan(direction, effort=None, tried=(), lengths=(512,)):
    """A plan of the Triton kernel on a problem of each length, ``tried`` of which an earlier run knows."""
    known = {(t.part, t.config_digest): t.status for t in tried}
    sizes = {"batch": 1, "num_q_heads": 2, "num_kv_heads": 2, "head_dim": 64, "v_head_dim": 64}
    points = [
        GridPoint(
            name=f"p{n}",
            op="flash_attention",
            signature=Problem(**sizes, q_len=n, kv_len=n).signature,
        )
        for n in lengths
    ]
    return make_plan(
        points,
        kernels=[get_kernel("flash_attention/triton")],
        device=TARGET.device,
        environment=Environment(jax="1", jaxlib="1"),
        directions=[direction],
        effort=effort,
        measured=lambda kernel, direction, signature, environment: known,
    )


def run(plan, compiler, **options):
    """The trials and the last event."""
    events = list(sweep_target(plan, compiler, **options))
    return [e for e in events if isinstance(e, Trial)], events[-1]


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_every_candidate_has_a_trial_and_one_that_cannot_fit_is_not_compiled(direction):
    plan, compiler = make_case_plan(direction), OwnCompiler()
    trials, last = run(plan, compiler)
    assert last.reason == "finished"
    (kernel,) = plan.cases[0].kernels
    for part in kernel.parts:
        fates = {t.config_digest: t for t in trials if t.part == part.part}
        assert len(fates) >= len(part.space)
        for config in part.space:
            trial = fates[_digest(config)]
            fits = _needs(config) <= LIMIT
            assert trial.status is (Status.COMPILED if fits else Status.OUT_OF_RESOURCES)
            assert fits or trial.shortage is not None
    pruned = [t for t in trials if t.reason.startswith("not compiled")]
    # Small ones came first: what is ruled out is never compiled, and something is.
    assert pruned
    assert len(compiler.compiled) + len(pruned) == len([t for t in trials if t.status != "unsupported"])
    assert all(t.measurement is None for t in trials)


class Halves:
    """A strategy that asks for every other config of the space, then for the rest."""

    def __call__(self, space):
        yield space.candidates[::2]
        yield space.candidates[1::2]


@pytest.mark.parametrize("limit", [LIMIT, 10**9])
def test_large_configs_come_first_once_all_have_fitted(monkeypatch, limit):
    monkeypatch.setitem(globals(), "LIMIT", limit)
    plan, compiler = make_case_plan("fwd"), OwnCompiler()
    run(plan, compiler, strategy=Halves())
    (part,) = plan.cases[0].kernels[0].parts
    first = {_digest(c) for c in part.space[::2]}
    # JAX's default blocks are compiled before any other.
    others = [c for _, c in compiler.compiled if not is_default(c)]
    sizes = [(_digest(c) in first, _size(c)) for c in others]
    before, after = ([size for is_first, size in sizes if is_first is half] for half in (True, False))
    assert before == sorted(before)
    # Where some do not fit, small ones tell of them first.
    assert after == sorted(after, reverse=limit == 10**9)


def _size(config):
    return config["num_stages"] * config["block_q"] * config["block_k"]


def test_the_best_predicted_parts_are_compiled_together(monkeypatch):
    plan, compiler = make_case_plan("bwd", Effort(max_trials=40)), OwnCompiler()
    seen = []

    def predicted(schedules, walk, problem, config, device):
        from attn_tune.schema import Prediction

        ns = 10_000 // config.get("block_k", 1) if "block_k" in config else 7
        seen.append(dict(config))
        return Prediction(ns=max(1, ns), low_ns=1, high_ns=10**9, model="m")

    monkeypatch.setattr("attn_tune.tuner.offline.compile_sweep.predict", predicted)
    compile_ = compiler._compile

    def with_schedule(ref):
        found = compile_(ref)
        schedules = (make_schedule(),) if found.status is Status.COMPILED else ()
        return Compiled(**{**_fields(found), "schedules": schedules})

    compiler._compile = with_schedule
    trials, _ = run(plan, compiler)
    best = {}
    for part in ("dq", "dkv"):
        found = [t for t in trials if t.part == part and t.prediction]
        best[part] = min(found, key=lambda t: (t.prediction.ns, t.config_digest)).config
    wholes = [t for t in trials if t.part == WHOLE]
    assert any(dict(t.config) == best for t in wholes)
    assert all(t.status in (Status.PREDICTED, Status.OUT_OF_RESOURCES, Status.UNSUPPORTED) for t in trials)


def predicting(monkeypatch, compiler):
    """Lets everything that fits have a schedule, and a time that says nothing but which config it is."""
    from attn_tune.schema import Prediction

    def predicted(schedules, walk, problem, config, device):
        ns = 1000 + 100 * config["block_q"] + config["block_k"] + config["num_warps"]
        return Prediction(ns=ns, low_ns=1, high_ns=10**9, model="m")

    monkeypatch.setattr("attn_tune.tuner.offline.compile_sweep.predict", predicted)
    compile_ = compiler._compile

    def with_schedule(ref):
        found = compile_(ref)
        schedules = (make_schedule(),) if found.status is Status.COMPILED else ()
        return Compiled(**{**_fields(found), "schedules": schedules})

    compiler._compile = with_schedule


def test_the_best_config_is_compiled_whole_and_one_that_fails_there_loses_its_prediction(
    monkeypatch,
):
    plan, compiler = make_case_plan("fwd"), OwnCompiler()
    predicting(monkeypatch, compiler)
    lack = Shortage(resource="hbm", needed=9, limit=8)
    compiler.whole_fates = [Compiled(status=Status.OUT_OF_RESOURCES, reason="no room", shortage=lack)]
    trials, _ = run(plan, compiler)
    *searched, failed, kept = [t for t in trials if t.status is not Status.UNSUPPORTED]
    order = sorted((t for t in searched if t.prediction), key=lambda t: (t.prediction.ns, t.config_digest))
    assert [dict(c) for c in compiler.wholes] == [dict(t.config) for t in order[:2]]
    assert (failed.config, failed.status, failed.shortage) == (
        order[0].config,
        Status.OUT_OF_RESOURCES,
        lack,
    )
    assert failed.prediction is None
    assert "as a whole program: no room" in failed.reason
    assert kept.status is Status.PREDICTED
    assert kept.prediction.ns == order[1].prediction.ns
    assert "whole_program" in kept.prediction.terms

    # Another run that knows all this compiles nothing whole again.
    last = {(t.part, t.config_digest): t for t in trials if t.prediction}
    del last[failed.part, failed.config_digest]
    plan, again = make_case_plan("fwd", tried=trials), OwnCompiler()
    predicting(monkeypatch, again)
    run(plan, again, past=lambda kernel, case: last)
    assert again.wholes == []


def test_a_whole_program_that_takes_too_long_says_nothing_of_its_prediction(monkeypatch):
    plan, compiler = make_case_plan("fwd", lengths=(512, 1024)), OwnCompiler()
    predicting(monkeypatch, compiler)
    compiler.whole_fates = [Compiled(status=Status.TIMED_OUT, reason="late")]
    trials, _ = run(plan, compiler)
    # Nor is time lost on the next case.
    assert len(compiler.wholes) == 1
    assert not [t for t in trials if t.status is Status.TIMED_OUT]
    assert not any("whole_program" in t.prediction.terms for t in trials if t.prediction)


@pytest.mark.parametrize("one_block", [False, True])
def test_a_later_case_begins_with_what_did_best_on_an_earlier_one(monkeypatch, one_block):
    limits = []

    def every_third(space):
        limits.append(space.limit)
        yield space.batch(space.open[::3][: space.limit])

    monkeypatch.setitem(globals(), "LIMIT", 10**9)

    # A block as long as the first problem is one block there and several on the second: another launch.
    lengths = (128, 1024) if one_block else (512, 1024)
    plan, compiler = make_case_plan("fwd", Effort(max_trials=20), lengths=lengths), OwnCompiler()
    predicting(monkeypatch, compiler)
    trials, _ = run(plan, compiler, strategy=every_third)
    first, second = (
        {t.config_digest: t for t in trials if t.signature.values["t"] == n and t.prediction} for n in lengths
    )
    several = {d for d, t in first.items() if 128 not in (t.config["block_q"], t.config["block_k"])}
    assert 0 < len(several) < len(first)
    best = sorted(several if one_block else first, key=lambda d: first[d].prediction.ns)
    known = best[:16]
    begun = [digest for digest, t in second.items() if not is_default(t.config)]
    assert set(begun[: len(known)]) == set(known)
    assert limits == [20, 20 - len(known)]


def test_a_sweep_that_is_stopped_ends_with_what_it_has():
    stop = threading.Event()
    plan, compiler = make_case_plan("fwd"), OwnCompiler()
    events, trials = sweep_target(plan, compiler, stop=stop), []
    for event in events:
        if isinstance(event, Trial) and event.status is not Status.UNSUPPORTED:
            trials.append(event)
            stop.set()
    assert event.reason == "stopped"
    assert len(trials) == 1


def _digest(config):
    from attn_tune.schema import config_digest

    return config_digest(config)


def _fields(compiled):
    return {name: getattr(compiled, name) for name in Compiled.__slots__}


def test_an_op_without_a_walk_is_compiled_and_not_predicted(monkeypatch):
    plan, compiler = make_case_plan("fwd"), OwnCompiler()
    predicting(monkeypatch, compiler)
    bare = dataclasses.replace(plan.cases[0].case.op, walk="")
    monkeypatch.setattr("attn_tune.tuner.plan.case.get_op", lambda name: bare)
    trials, _ = run(plan, compiler)
    compiled = [t for t in trials if t.status is Status.COMPILED]
    assert compiled
    assert {t.reason for t in compiled} == {"no time is predicted: the op flash_attention declares no walk"}
