"""The loop that only compiles, over a compiler of our own: every fate is a trial, predictions lead to the wholes."""

import threading

import pytest

from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.kernels.registry import get_kernel
from attn_tune.schema import Environment, Shortage, Status
from attn_tune.schema.trial import WHOLE, Trial
from attn_tune.tuner.case import GridPoint
from attn_tune.tuner.plan import make_plan
from attn_tune.tuner.strategies import Effort
from attn_tune.tuner.targets import find_target, sweep_target
from attn_tune.tuner.targets.protocol import Compiled
from tests.tuner.targets.test_model import make_schedule

TARGET = find_target("sm_90")
LIMIT = 150_000


class OwnCompiler:
    """Compiles at once, in order; what needs more shared memory than LIMIT does not fit."""

    def __init__(self):
        self.compiled = []

    def compile(self, refs, *, skip, leave):
        for index, ref in enumerate(refs):
            if leave():
                return
            yield index, skip(ref) or self._compile(ref)

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


def make_case_plan(direction, effort=None):
    """A plan of the Triton kernel on one problem."""
    sizes = {"batch": 1, "q_len": 512, "kv_len": 512, "num_q_heads": 2, "num_kv_heads": 2}
    signature = Problem(**sizes, head_dim=64, v_head_dim=64).signature
    point = GridPoint(name="p", op="flash_attention", signature=signature)
    return make_plan(
        [point],
        kernels=[get_kernel("flash_attention/triton")],
        device=TARGET.device,
        environment=Environment(jax="1", jaxlib="1"),
        directions=[direction],
        effort=effort,
    )


def run(plan, compiler, **options):
    """The trials and the last event."""
    events = list(sweep_target(plan, compiler, **options))
    return [e for e in events if isinstance(e, Trial)], events[-1]


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_every_candidate_has_a_fate_and_what_cannot_fit_is_not_compiled(direction):
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
    assert len(compiler.compiled) + len(pruned) == len(
        [t for t in trials if t.status != "unsupported"]
    )
    assert all(t.measurement is None for t in trials)


def test_the_best_predicted_parts_are_compiled_together(monkeypatch):
    plan, compiler = make_case_plan("bwd", Effort(max_trials=40)), OwnCompiler()
    seen = []

    def predicted(schedules, problem, config, device):
        from attn_tune.schema import Prediction

        ns = 10_000 // config.get("block_k", 1) if "block_k" in config else 7
        seen.append(dict(config))
        return Prediction(ns=max(1, ns), low_ns=1, high_ns=10**9, model="m")

    monkeypatch.setattr("attn_tune.tuner.targets.sweep.predict", predicted)
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
    assert all(
        t.status in (Status.PREDICTED, Status.OUT_OF_RESOURCES, Status.UNSUPPORTED) for t in trials
    )


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
