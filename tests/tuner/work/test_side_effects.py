"""Configs that call back into Python, or change JAX, are refused and hurt no other."""

import contextlib

import jax
import pytest

from attn_tune.schema.errors import UnsupportedError
from attn_tune.schema.trial import Status
from attn_tune.tuner.protocol import ConfigRef, MeasurePolicy, Phase, Run
from attn_tune.tuner.work import compile as compile_module, side_effects
from attn_tune.tuner.work.faults import outcome_of
from attn_tune.tuner.work.lowering_helper import lower_ahead
from attn_tune.tuner.work.session import Session
from attn_tune.tuner.work.side_effects import (
    ChangedConfigError,
    find_callback,
    refuse_callbacks,
    unchanged_configuration,
)

POLICY = MeasurePolicy(samples=3, max_s=0.1)


@pytest.fixture(scope="module")
def session() -> Session:
    return Session()


def outcome(session, point, device, defect, *, measure=True):
    ref = ConfigRef(
        kernel="flash_attention/planted_wrong",
        signature=point.signature,
        direction="fwd",
        config={"defect": defect, "turn": 1},
    )
    return session.run(Run(ref=ref, device=device, policy=POLICY, measure=measure))


@pytest.mark.parametrize("measure", [True, False], ids=["sweep", "validate"])
@pytest.mark.parametrize("defect", ["cache_cheat", "debugs"])
def test_a_program_that_calls_back_is_refused(session, planted, point, device, monkeypatch, defect, measure):
    monkeypatch.setattr(side_effects, "callbacks_allowed", False)
    found = outcome(session, point, device, defect, measure=measure)
    assert found.status is Status.UNSUPPORTED
    assert "its program calls back into Python (xla_ffi_python_cpu_callback)" in found.reason
    assert "jax.pure_callback" in found.reason
    assert outcome(session, point, device, "none").status is Status.OK


def test_tests_of_isolation_may_call_back(session, planted, point, device):
    assert outcome(session, point, device, "cache_cheat").status is Status.OK


@pytest.mark.parametrize(
    "target",
    [
        "xla_ffi_python_cpu_callback",
        "xla_ffi_partitioned_python_gpu_callback",
        "xla_python_gpu_callback",
    ],
)
def test_all_spellings_of_callbacks_are_known(target):
    assert find_callback(f"stablehlo.custom_call @{target}(%0)") == target
    assert find_callback("stablehlo.custom_call @triton_kernel_call(%0)") == ""
    # A large constant is one word: a search from each of its letters on would not end.
    assert find_callback(f'stablehlo.constant dense<"0x{"0A" * 2_000_000}">') == ""


@pytest.mark.parametrize(("backend", "allowed"), [("triton", True), ("xla", False)])
def test_triton_s_interpreter_may_call_back(monkeypatch, backend, allowed):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(side_effects, "callbacks_allowed", False)
    program = "stablehlo.custom_call @xla_ffi_python_cpu_callback(%0)"
    with contextlib.nullcontext() if allowed else pytest.raises(UnsupportedError):
        refuse_callbacks(program, backend)
    refuse_callbacks("stablehlo.custom_call @__cudnn(%0)", backend)


def test_a_config_that_changes_jax_is_refused_and_the_next_is_unharmed(session, planted, point, device):
    before = outcome(session, point, device, "none")
    found = outcome(session, point, device, "global_x64")
    assert found.status is Status.UNSUPPORTED
    assert "jax_enable_x64 to True" in found.reason
    assert not found.sticky
    assert not jax.config.values["jax_enable_x64"]
    after = outcome(session, point, device, "none")
    assert after.status is Status.OK
    assert after.resources.code_digest == before.resources.code_digest


def test_a_change_that_stays_costs_the_worker():
    """Only of this thread: nothing can take it back."""
    context = jax.enable_x64(True)
    try:
        with pytest.raises(ChangedConfigError) as caught, unchanged_configuration():
            context.__enter__()
    finally:
        context.__exit__(None, None, None)
    assert caught.value.stays
    found = outcome_of(caught.value, Phase.COMPILE)
    assert (found.status, found.sticky) == (Status.UNSUPPORTED, True)


def test_a_trace_that_fails_leaves_the_configuration_as_it_was():
    def fail():
        jax.config.update("jax_enable_x64", True)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), unchanged_configuration():
        fail()
    assert not jax.config.values["jax_enable_x64"]


def test_a_helper_that_was_changed_for_good_ends(point, monkeypatch):
    ref = ConfigRef(kernel="flash_attention/xla", signature=point.signature, direction="fwd", config={})

    def changes(*, stays):
        def lower_config(*args):
            raise ChangedConfigError("tracing it sets options of JAX", stays=stays)

        monkeypatch.setattr(compile_module, "lower_config", lower_config)

    changes(stays=False)
    assert "sets options of JAX" in lower_ahead(ref, 90)
    changes(stays=True)
    with pytest.raises(SystemExit):
        lower_ahead(ref, 90)
