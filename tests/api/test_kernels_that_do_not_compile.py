"""Triton kernels that cannot be compiled for the GPU of a job: others answer for that call, as it is traced."""

import dataclasses
import json
import logging

import jax
import jax.numpy as jnp
import pytest

import attn_tune
from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.lang.triton import ahead
from attn_tune.kernels.lang.triton.limits import CompileError, OutOfResources
from attn_tune.kernels.lang.triton.target import compile_target
from attn_tune.runtime.lookup import dispatch
from attn_tune.runtime.lookup.answer import Rung
from attn_tune.runtime.lookup.question import failed_configs
from attn_tune.schema.environment import Grade

# A window and a width for which only Triton and XLA have a backward that is deterministic.
SHAPE, WINDOW = (512, 8, 96), (100, 0)
SIGNATURE = "flash_attention/v1 b={} t=512 s=512 n=8 k=8 h=96 v=96 dtype=bfloat16 causal=1 left=100"


@pytest.fixture
def compiled(monkeypatch):
    """The names of the kernels that were to be compiled; ``compiled.failing`` maps those that fail to their errors."""

    class Names(list):
        def __init__(self):
            super().__init__()
            self.failing = {}

    found = Names()

    def compile_kernel(launch, dtypes, capability):
        assert capability == 90
        assert set(dtypes) <= {"bfloat16", "float32"}
        found.append(launch.name)
        if launch.name in found.failing:
            raise found.failing[launch.name]

    monkeypatch.setenv("ATTN_TUNE_DEVICE_AS", "nvidia-h200")
    monkeypatch.setattr(ahead, "compile_kernel", compile_kernel)
    # Where another test has chosen Triton's interpreter.
    monkeypatch.setattr(ahead, "is_interpreted", lambda kernel: False)
    attn_tune.reload()
    yield found
    failed_configs.clear()
    monkeypatch.undo()
    attn_tune.reload()


def traced(batch, **how):
    """The text of a step forward and backward, traced for an H200. Traces are kept: tests have other batches."""
    q = jax.ShapeDtypeStruct((batch, *SHAPE), jnp.bfloat16)

    def loss(q):
        out = attn_tune.flash_attention(q, q, q, causal=True, sliding_window=WINDOW, **how)
        return jnp.sum(out.astype(jnp.float32))

    with compile_target(90):
        return str(jax.jit(jax.grad(loss)).trace(q).jaxpr)


def test_kernels_are_compiled_as_they_are_traced_and_once(compiled):
    assert "flash_attention_bwd_dkv" in traced(2)
    assert sorted(compiled) == ["flash_attention_bwd_dkv", "flash_attention_bwd_dq", "flash_attention_fwd"]
    traced(2)
    assert len(compiled) == 3


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (3, CompileError("ptxas failed with error code -11")),
        (5, OutOfResources("dkv", 90, 300_000, 232_448, "shared memory")),
    ],
)
def test_another_kernel_answers_for_this_call_alone(compiled, caplog, batch, error):
    signature = SIGNATURE.format(batch)
    compiled.failing["flash_attention_bwd_dkv"] = error
    with caplog.at_level(logging.WARNING, "attn_tune"):
        text = traced(batch)
    assert "flash_attention_fwd" in text
    assert "flash_attention_bwd" not in text
    (said,) = (r.getMessage() for r in caplog.records if "left out" in r.getMessage())
    name = type(error).__name__
    assert said == f"attn-tune: flash_attention/triton is left out of bwd of {signature}: {name}: {error}"
    explained = attn_tune.explain("flash_attention", signature, "bwd")
    assert explained.answer.kernel == "xla"
    assert f"it failed in this process: {name}: " in str(explained)
    compiled.failing.clear()
    # The same call is not tried again, and another one is.
    assert "flash_attention_bwd" not in traced(batch)
    assert "flash_attention_bwd_dkv" in traced(batch + 1)


def test_a_kernel_that_is_asked_for_is_left_to_its_own_error(compiled):
    compiled.failing["flash_attention_fwd"] = CompileError("no")
    assert "flash_attention_fwd" in traced(7, platform="triton")
    assert compiled == []


def test_answers_to_other_calls_stay_and_so_do_other_configs_and_devices(compiled, tmp_path):
    traced(9)
    traced(10)
    compiled.failing["flash_attention_fwd"] = OutOfResources("fwd", 90, 300_000, 232_448, "shared memory")
    assert "flash_attention_fwd" not in traced(11)
    attn_tune.freeze(tmp_path / "frozen.json")
    frozen = [u["signature"] for u in json.loads((tmp_path / "frozen.json").read_text())["use"]]
    assert {SIGNATURE.format(batch) for batch in (9, 10, 11)} <= set(frozen)
    small = {"block_q": 64, "block_k": 16, "num_warps": 4, "num_stages": 2}
    how = {"platform": {"fwd": "triton"}, "cfg": {"fwd": small}}
    assert "flash_attention_fwd" in traced(11, **how)
    assert "flash_attention_fwd" in traced(11, platform="triton")
    b200 = device_from_kind("nvidia-b200")
    untuned = attn_tune.lookup("flash_attention", SIGNATURE.format(11), "fwd", device=b200)
    assert untuned.kernel == "triton"


def test_a_row_that_was_measured_with_these_compilers_is_not_tried(compiled, monkeypatch):
    real = dispatch.choose

    def proven(*words, **how):
        choice = real(*words, **how)
        answer = dataclasses.replace(choice.answer, rung=Rung.EXACT, grade=Grade.VERIFIED)
        return dataclasses.replace(choice, answer=answer)

    monkeypatch.setattr(dispatch, "choose", proven)
    assert "flash_attention_fwd" in traced(12)
    assert compiled == []


def test_nothing_is_compiled_without_a_gpu(compiled):
    q = jax.ShapeDtypeStruct((8, *SHAPE), jnp.bfloat16)
    assert "flash_attention_fwd" in str(jax.make_jaxpr(lambda q: attn_tune.flash_attention(q, q, q, causal=True))(q))
    assert compiled == []
