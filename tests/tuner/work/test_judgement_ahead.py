"""Judging ahead: the programs that compare outputs are compiled before the process that measures needs them."""

import threading

import jax
import pytest

from attn_tune.ops.contract import load
from attn_tune.ops.registry import get_op
from attn_tune.tuner.work import prepared_cases
from attn_tune.tuner.work.case_functions import compile_case_functions
from attn_tune.tuner.work.prepared_cases import PreparedCases
from attn_tune.tuner.work.validate import validate

COMPILED = "/jax/core/compile/backend_compile_duration"
# Values and logarithms, gradients, what takes over a cache, codes with scales.
CASES = [
    ("flash_attention", "fwd", "plain"),
    ("flash_attention", "bwd", "plain"),
    ("paged_append", "fwd", "paged"),
    ("paged_append", "fwd", "float8"),
]


@pytest.fixture
def compiled():
    """The events of XLA's compilations."""
    seen = []

    def listener(event, seconds, **more):
        if event == COMPILED:
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listener)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listener)


@pytest.mark.parametrize(("name", "direction", "sample"), CASES, ids=[" ".join(case) for case in CASES])
def test_nothing_is_compiled_to_judge_outputs_after_it_was_compiled_ahead(compiled, name, direction, sample):
    op = get_op(name)
    samples = load(op.samples)()
    problem = samples[next(label for label in samples if label.startswith(sample))]
    functions = compile_case_functions(op, problem, direction)
    case = functions.make(0)
    right = {output.name: case.baseline[output.name] for output in case.outputs}
    right = {n: case.reference[n].astype(x.dtype) for n, x in right.items()}
    jax.clear_caches()
    functions.compile_judgement()
    assert compiled
    compiled.clear()
    assert validate(lambda inputs: right, [case]).repeatable
    assert compiled == []


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_it_is_compiled_ahead_where_that_does_not_take_the_time_of_what_runs(monkeypatch, backend):
    done = threading.Event()

    class Functions:
        def compile_judgement(self):
            done.set()

    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(prepared_cases, "compile_case_functions", lambda *case: Functions())
    prepared = PreparedCases(lambda phase: None)
    assert isinstance(prepared._functions("flash_attention", None, "fwd").result(), Functions)
    prepared._pool.shutdown()
    assert done.is_set() == (backend == "gpu")
