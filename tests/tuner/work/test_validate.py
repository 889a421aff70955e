"""Verdicts, with kernels played by functions."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.contract import load
from attn_tune.ops.registry import get_op
from attn_tune.schema.direction import WHOLE
from attn_tune.tuner.work import validate as validation
from attn_tune.tuner.work.case_functions import compile_case_functions
from attn_tune.tuner.work.compile import part_outputs
from attn_tune.tuner.work.validate import same_bits, spoil_free_memory, validate


@pytest.fixture(scope="module")
def case(problem):
    return compile_case_functions(get_op("flash_attention"), problem, "fwd").make(0)


@pytest.fixture(scope="module")
def plain(problem):
    baseline = load(get_op("flash_attention").baseline)
    return jax.jit(lambda inputs: dict(baseline(problem, "fwd", inputs)))


def test_the_plain_computation_passes(case, plain):
    verdict = validate(plain, [case])
    assert verdict.correct
    assert verdict.repeatable
    assert {e.output for e in verdict.errors} == {"out", "lse"}


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda out: out.at[0, 3, 1, 5].set(jnp.nan), "out is wrong: not finite where the reference is"),
        (lambda out: out.at[0, 3].set(0), "out is wrong: error 1, allowed "),
        (lambda out: out * jnp.asarray(1.03, out.dtype), "out is wrong: error 0.0"),
        (lambda out: out.astype(jnp.float32), "out is float32[{shape}], must be {dtype}[{shape}]"),
        (lambda out: out[:, :, :, :0], ", 0], must be {dtype}[{shape}]"),
    ],
    ids=["nan", "a row", "scale", "dtype", "shape"],
)
def test_harm_is_seen_and_said(case, plain, harm, words):
    def call(inputs):
        outputs = plain(inputs)
        return {**outputs, "out": harm(outputs["out"])}

    verdict = validate(call, [case])
    assert [e.output for e in verdict.errors if e.ratio > 1] == ["out"]
    like = case.baseline["out"]
    assert words.format(shape=", ".join(map(str, like.shape)), dtype=like.dtype) in verdict.remark


def test_an_output_that_is_missing_is_said_to_be(case, plain):
    verdict = validate(lambda inputs: {"out": plain(inputs)["out"]}, [case])
    assert verdict.remark == "lse is missing"


def test_free_memory_is_spoiled_before_each_run_on_an_accelerator(case, plain, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    events, full = [], jnp.full

    def noted(shape, value, dtype):
        events.append((tuple(shape), jnp.dtype(dtype).name, bool(jnp.isnan(value))))
        return full(shape, value, dtype)

    def call(inputs):
        events.append("run")
        return plain(inputs)

    monkeypatch.setattr(jnp, "full", noted)
    assert validate(call, [case]).correct
    out, lse = case.baseline["out"], case.baseline["lse"]
    spoiled = [
        *((x.shape, x.dtype.name, True) for x in case.baseline.values()),
        ((2 * (out.size + lse.size),), "float32", True),
    ]
    assert {"out", "lse"} == set(case.baseline)
    assert events == [*spoiled, "run", *spoiled, "run"]


@pytest.fixture
def filled(monkeypatch):
    """The arrays that are made on what seems to be a GPU."""
    made, full = [], jnp.full
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jnp, "full", lambda *given: made.append(full(*given)) or made[-1])
    return made


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int32", 2**31 - 1), ("bool", True), ("int8", 127), ("float4_e2m1fn", 6.0)],
    ids=["int32", "bool", "int8", "float4"],
)
def test_outputs_that_have_no_nan_are_spoiled_too(filled, dtype, value):
    spoil_free_memory({"x": jnp.zeros((3, 2), dtype)})
    assert [x.shape for x in filled] == [(3, 2), (12,)]
    assert (filled[0].astype(jnp.float32) == value).all()


def test_no_more_memory_is_spoiled_than_a_limit(filled, monkeypatch):
    monkeypatch.setattr(validation, "_MOST_SPOILED_BYTES", 100)
    spoil_free_memory({"x": jnp.zeros(10), "y": jnp.zeros((5, 5)), "z": jnp.zeros(7)})
    assert [x.shape for x in filled] == [(10,), (15,), (0,), (0,)]


def test_memory_that_is_lacking_is_not_spoiled_and_no_fault_of_the_kernel(case, plain, monkeypatch):
    def full(*given):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jnp, "full", full)
    assert validate(plain, [case]).correct


def test_only_the_parts_outputs_are_asked_for(case, plain):
    def call(inputs):
        return {"out": plain(inputs)["out"]}

    assert validate(call, [case], ("out",)).correct
    missing = validate(call, [case])
    assert [(e.output, e.error) for e in missing.errors if e.ratio > 1] == [("lse", math.inf)]


def test_a_part_of_no_output_of_the_op_is_never_right(case):
    verdict = validate(lambda inputs: {}, [case], ("dqq",))
    assert not verdict.correct
    assert verdict.remark == "dqq is no output of the op; known: out, lse"


def test_a_launch_that_makes_all_is_judged_on_all_that_its_search_does_not_name():
    search = get_kernel("flash_attention/xla").searches["fwd"]
    assert part_outputs(dataclasses.replace(search, outputs={WHOLE: ("lse",)}), WHOLE) == ()


def test_a_second_run_that_differs_is_reported_and_judged(case, plain):
    factors = iter([1.0, 1.0 + 2**-7, 1.0, 1.5])

    def call(inputs):
        outputs = plain(inputs)
        return {**outputs, "lse": outputs["lse"], "out": outputs["out"] * next(factors)}

    def small(inputs):
        outputs = call(inputs)
        return {**outputs, "out": outputs["out"].astype(jnp.bfloat16)}

    near = validate(small, [case])
    assert not near.repeatable
    assert "different bits" in near.remark
    far = validate(small, [case])
    assert not far.correct


def test_bits_separate_nan_from_missing_values():
    nan, zero = jnp.array([jnp.nan]), jnp.array([0.0])
    assert same_bits({"x": nan}, [{"x": nan}, {"x": zero}]) == [True, False]
    assert same_bits({"x": zero}, [{"x": -zero}, {"y": zero}, {"x": zero}]) == [False, False, True]
    assert same_bits({"x": zero}, []) == []
