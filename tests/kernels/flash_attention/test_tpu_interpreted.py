"""Every TPU kernel, forward and gradients, in Pallas' TPU interpreter against a dense float64 attention."""

import dataclasses
from dataclasses import dataclass

import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.flash_attention._splash.config import SEQ_MINOR, DkvLaunch, DqLaunch
from attn_tune.kernels.flash_attention.pallas_tpu_flash import SPEC as FLASH, config as flash
from attn_tune.kernels.flash_attention.pallas_tpu_splash import SPEC as SPLASH, config as splash
from attn_tune.kernels.flash_attention.pallas_tpu_splash_fused import (
    SPEC as FUSED,
    config as fused,
)
from attn_tune.ops.flash_attention.inputs import make_inputs
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.flash_attention.reference import baseline, reference
from tests.chosen import chosen
from tests.kernels.flash_attention import dense_numpy
from tests.kernels.flash_attention.dense_inputs import (
    assert_close,
    backward_inputs,
    fast_jit,
    in_float32,
)
from tests.kernels.flash_attention.judged import compare
from tests.kernels.tpu_interpreted import run

V5E = device_from_kind("tpu-v5e")


@dataclass(frozen=True)
class Case:
    """``blocks`` are those of rows, of keys, and of keys in a product."""

    name: str
    problem: Problem
    blocks: tuple[int, int, int] = (128, 128, 128)
    turned: bool = False
    block_b: int = 1


def problem(t, s, *, h=16, v=None, heads=(2, 1), **flags):
    flags = {"dtype": "float32", "precision": "highest", "scale": h**-0.5, "batch": 1} | flags
    return Problem(
        q_len=t, kv_len=s, num_q_heads=heads[0], num_kv_heads=heads[1], head_dim=h, v_head_dim=v or h, **flags
    )  # fmt: skip


# Lengths are no multiples of blocks; rows before the first key see nothing. Each case has several features, so that
# few compilations cover them all.
HIDDEN_ROWS = Case("hidden_rows", problem(150, 70, causal=True, has_sinks=True))
WINDOW = Case("window", problem(70, 140, window=(9, 5), soft_cap=2.0, v=24), turned=True)
SEGMENTS = Case("segments", problem(60, 260, causal=True, has_segments=True, batch=2, heads=(1, 1)),
                blocks=(128, 256, 128))  # fmt: skip
BIAS = Case("bias", problem(150, 70, causal=True, bias_dims="b1ts", has_sinks=True))
MASK = Case("mask", problem(70, 140, mask_dims="bnt1", v=24, batch=2, heads=(1, 1)), block_b=2)


def forward_config(spec, case):
    q, kv, compute = case.blocks
    if spec is FLASH:
        return flash.ForwardConfig(block_b=case.block_b, block_q=q, block_k_major=kv, block_k=compute)
    return splash.ForwardConfig(block_q=q, block_kv=kv, block_kv_compute=compute, **layouts(case))


def backward_config(spec, case):
    q, kv, compute = case.blocks
    if spec is FLASH:
        keys = {"block_k_major": kv, "block_k": compute}
        return flash.BackwardConfig(
            dq=flash.DqConfig(block_q=q, **keys),
            dkv=flash.DkvConfig(block_q_major=q, block_q=q, **keys),
        )
    blocks = {"block_q": q, "block_kv": kv, **layouts(case)}
    if spec is FUSED:
        return fused.BackwardConfig(**blocks, block_kv_compute=compute)
    return splash.BackwardConfig(dq=DqLaunch(**blocks), dkv=DkvLaunch(**blocks, block_kv_compute=compute))


def layouts(case):
    return dict.fromkeys(("q_layout", "k_layout", "v_layout"), SEQ_MINOR) if case.turned else {}


RUNS = {
    f"{spec.name}-{case.name}-{direction}": (spec, case, direction)
    for spec, case, direction in (
        (SPLASH, HIDDEN_ROWS, "fwd"),
        (SPLASH, HIDDEN_ROWS, "bwd"),
        (SPLASH, WINDOW, "fwd"),
        (SPLASH, WINDOW, "bwd"),
        (SPLASH, SEGMENTS, "fwd"),
        (SPLASH, SEGMENTS, "bwd"),
        (FUSED, SEGMENTS, "bwd"),
        (FLASH, BIAS, "fwd"),
        (FLASH, BIAS, "bwd"),
        (FLASH, MASK, "fwd"),
        (FLASH, SEGMENTS, "bwd"),
    )
}
KEPT = [
    *("pallas_tpu_splash-hidden_rows-fwd", "pallas_tpu_splash-window-bwd", "pallas_tpu_splash-segments-fwd"),
    *("pallas_tpu_splash_fused-segments-bwd", "pallas_tpu_flash-bias-bwd", "pallas_tpu_flash-mask-fwd"),
]


@pytest.mark.parametrize("name", chosen(RUNS, KEPT))
def test_outputs_and_gradients_are_right(name):
    spec, case, direction = RUNS[name]
    p = in_float32(case.problem)
    operands, inputs = backward_inputs(p)
    config = (forward_config if direction == "fwd" else backward_config)(spec, case)
    assert spec.unsupported(p, direction, V5E) is None
    assert spec.searches[direction].infeasible(p, V5E, config) is None
    if direction == "fwd":
        got, expected = run(spec, "fwd", p, config, operands), dense_numpy.attention(p, operands)
        names = ("out", "lse")
    else:
        got, expected = run(spec, "bwd", p, config, inputs), dense_numpy.gradients(p, inputs)
        names = ("dq", "dk", "dv", *(("dbias",) if p.bias_dims else ()))
    assert set(got) == set(names)
    for output in names:
        assert_close(got[output], expected[output], relative=2e-5, name=output)


# The scale is no power of two: splash attention by itself would round the scaled query, which the lse shows.
IN_BFLOAT16 = Case("bfloat16", problem(70, 100, h=24, dtype="bfloat16", precision="default", causal=True))


def test_the_rule_is_passed_in_bfloat16():
    p = IN_BFLOAT16.problem
    operands = make_inputs(p, "fwd", 1)
    errors = errors_of(p, operands, p, operands)
    assert all(error.ratio <= 1 for error in errors), errors


def test_a_rounded_query_would_be_caught():
    p = IN_BFLOAT16.problem
    operands = make_inputs(p, "fwd", 1)
    scaled = (operands.q.astype("float32") * p.scale).astype("bfloat16")
    errors = errors_of(p, operands, dataclasses.replace(p, scale=1.0), operands._replace(q=scaled))
    assert {error.output: error.ratio > 1 for error in errors}["lse"]


def errors_of(p, operands, asked, given):
    """The errors at ``(p, operands)`` of a splash forward that was asked something else."""
    got = run(SPLASH, "fwd", asked, forward_config(SPLASH, IN_BFLOAT16), given)
    exact, plain = (fast_jit(f)(p, "fwd", operands) for f in (reference, baseline))
    return compare(got, exact, plain)
