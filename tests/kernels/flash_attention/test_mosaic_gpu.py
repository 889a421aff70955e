"""JAX's Mosaic GPU attention as a kernel of the op: what can be known of it without a GPU."""

import dataclasses
import math
import types

import jax.numpy as jnp
import pytest
from jax.experimental.pallas.ops.gpu import attention_mgpu

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.flash_attention.mosaic_gpu import SPEC, backward, library, limits
from attn_tune.kernels.flash_attention.mosaic_gpu.config import (
    BackwardConfig,
    DkvConfig,
    DqConfig,
    ForwardConfig,
)
from attn_tune.kernels.flash_attention.mosaic_gpu.forward import tuning_config
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.errors import UnsupportedError, UsageError
from tests.chosen import chosen
from tests.kernels.flash_attention.cuda_lowering import (
    check_outputs,
    lowered,
    needs_cuda_plugin,
    outputs_of,
)

H200, A100 = device_from_kind("nvidia-h200"), device_from_kind("nvidia-a100-sxm4-80gb")
FULL = Problem(
    batch=2, q_len=512, kv_len=512, num_q_heads=4, num_kv_heads=2, head_dim=128, v_head_dim=128,
    scale=128**-0.5,
)  # fmt: skip
PROBLEMS = {
    "full": FULL,
    "causal": dataclasses.replace(FULL, causal=True),
    "float16": dataclasses.replace(FULL, dtype="float16"),
    "longer_keys": dataclasses.replace(FULL, q_len=128, kv_len=1024),
    "sinks": dataclasses.replace(FULL, has_sinks=True),
    "narrow": dataclasses.replace(FULL, head_dim=64, v_head_dim=64, causal=True),
    "wide": dataclasses.replace(FULL, head_dim=256, v_head_dim=256),
    "lse_gradient": dataclasses.replace(FULL, has_lse_gradient=True),
}
CELLS = [
    (name, direction)
    for name, problem in PROBLEMS.items()
    for direction in ("fwd", "bwd")
    if SPEC.unsupported(problem, direction, H200) is None
]


@pytest.mark.parametrize(
    ("changes", "directions", "word"),
    [
        ({}, "", ""),
        ({"causal": True}, "bwd", "not causal"),
        ({"dtype": "float32"}, "fwd bwd", "bfloat16"),
        ({"head_dim": 80, "v_head_dim": 80}, "fwd bwd", "head_dim=80"),
        ({"v_head_dim": 64}, "fwd bwd", "one head dim"),
        ({"q_len": 192, "kv_len": 192}, "fwd", "q_len=192 must be a multiple of 128"),
        ({"kv_len": 500}, "fwd bwd", "kv_len=500 must be a multiple of 64"),
        ({"causal": True, "kv_len": 1024}, "fwd bwd", "causal"),
        ({"causal": True, "window": (9, None)}, "fwd bwd", "window"),
        # A window that hides nothing is none.
        ({"window": (511, 600)}, "", ""),
        ({"soft_cap": 30.0}, "fwd bwd", "cap"),
        ({"mask_dims": "b1ts"}, "fwd bwd", "mask"),
        ({"bias_dims": "1nts"}, "fwd bwd", "bias"),
        ({"has_segments": True}, "fwd bwd", "segment"),
        ({"has_positions": True}, "fwd bwd", "positions"),
        ({"dropout_rate": 0.1}, "fwd bwd", "dropout"),
        ({"logits_dtype": "bfloat16"}, "fwd bwd", "logits"),
        ({"scale": -1.0}, "fwd bwd", "scale=-1.0"),
    ],
)
def test_limits_are_reasons_in_words(changes, directions, word):
    problem = dataclasses.replace(FULL, **changes)
    for direction in ("fwd", "bwd"):
        reason = SPEC.unsupported(problem, direction, H200)
        if direction in directions.split():
            assert reason is not None
            assert word in reason
        else:
            assert reason is None


def test_devices_but_hopper_and_a_miscompiling_cuda_are_refused(monkeypatch):
    assert "sm_90" in SPEC.unsupported(FULL, "fwd", A100)
    assert "not on tpu" in SPEC.unsupported(FULL, "fwd", device_from_kind("tpu-v6e"))
    causal = PROBLEMS["causal"]
    for version, refused in (((12, 8, 90), True), ((12, 9, 0), True), ((12, 9, 1), False)):
        monkeypatch.setattr(limits, "_cuda_version", lambda version=version: version)
        assert (SPEC.unsupported(causal, "fwd", H200) is not None) is refused
        assert SPEC.unsupported(FULL, "fwd", H200) is None


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (ForwardConfig(block_q=192, block_kv=64, max_concurrent_steps=2), "block_q=192"),
        (ForwardConfig(block_q=64, block_kv=192, max_concurrent_steps=2), "block_kv=192"),
        (ForwardConfig(block_q=64, block_kv=256, max_concurrent_steps=2), "298072 bytes"),
        (
            BackwardConfig(
                dq=DqConfig(block_q=64, block_kv=64, max_concurrent_steps=2),
                dkv=DkvConfig(block_q=256, block_kv=64, max_concurrent_steps=3),
            ),
            "dkv: ",
        ),
    ],
)
def test_tiles_that_cannot_run_are_refused_with_the_numbers(config, word):
    direction = "fwd" if isinstance(config, ForwardConfig) else "bwd"
    assert word in SPEC.searches[direction].infeasible(FULL, H200, config)


@needs_cuda_plugin
def test_shared_memory_is_what_mosaic_counts():
    for changes in ({}, {"pipeline_emitter": True}):
        config = ForwardConfig(block_q=64, block_kv=256, max_concurrent_steps=2, **changes)
        with pytest.raises(ValueError, match=f"smem_bytes={limits._shared(FULL, config)} "):
            lowered(SPEC, FULL, "fwd", config)
    whole = SPEC.searches["bwd"].heuristic(FULL, H200)
    big = {"block_q": 256, "block_kv": 256, "max_concurrent_steps": 2}
    for part, launch in (("dq", DqConfig(**big)), ("dkv", DkvConfig(**big))):
        with pytest.raises(ValueError, match=f"smem_bytes={limits._shared(FULL, launch)} "):
            lowered(SPEC, FULL, "bwd", dataclasses.replace(whole, **{part: launch}), part)


def test_configs_are_those_of_the_library():
    forward = ForwardConfig(
        block_q=64, block_kv=128, max_concurrent_steps=3, pipeline_emitter=True,
        schedule_barrier=False,
    )  # fmt: skip
    assert tuning_config(FULL, forward) == attention_mgpu.TuningConfig(
        block_q=64, block_kv=128, max_concurrent_steps=3, use_schedule_barrier=False, causal=False
    )
    assert tuning_config(PROBLEMS["causal"], forward).causal
    launch = {"block_q": 128, "block_kv": 192, "max_concurrent_steps": 2, "compute_warpgroups": 2}
    dq, dkv = (backward.tuning_config(cls(**launch)) for cls in (DqConfig, DkvConfig))
    assert (dq.block_q_dq, dq.block_kv_dq, dq.block_q_dkv, dq.block_kv_dkv) == (128, 192, 64, 64)
    assert (dkv.block_q_dkv, dkv.block_kv_dkv, dkv.block_q_dq, dkv.block_kv_dq) == ((128, 192, 64, 64))
    assert dq.compute_wgs_bwd == dkv.compute_wgs_bwd == 2
    assert dq.max_concurrent_steps == 2


@pytest.mark.parametrize(
    "knobs",
    [
        {"block_q": 96},
        {"block_kv": 0},
        {"max_concurrent_steps": 1},
        {"schedule_barrier": False},
    ],
)
def test_impossible_knobs_are_refused(knobs):
    good = {"block_q": 64, "block_kv": 64, "max_concurrent_steps": 2}
    with pytest.raises(UsageError, match=next(iter(knobs))):
        ForwardConfig(**(good | knobs))


@pytest.mark.parametrize(("name", "direction"), CELLS)
def test_outputs_have_the_shapes_and_types_of_the_contract(name, direction):
    problem, search = PROBLEMS[name], SPEC.searches[direction]
    found = outputs_of(SPEC, problem, direction, search.heuristic(problem, H200))
    check_outputs(problem, direction, found)


@needs_cuda_plugin
@pytest.mark.parametrize(
    ("name", "direction"),
    chosen(CELLS, [("causal", "fwd"), ("narrow", "fwd"), ("longer_keys", "bwd"), ("sinks", "bwd")]),
)
def test_each_part_lowers_to_its_one_launch(name, direction):
    problem, search = PROBLEMS[name], SPEC.searches[direction]
    for part in search.parts:
        text = lowered(SPEC, problem, direction, search.heuristic(problem, H200), part)
        assert text.count("custom_call @mosaic_gpu") == 1


def test_the_library_is_left_as_it_is_and_runs_with_the_two_names_bound():
    problem = dataclasses.replace(FULL, scale=0.3)
    bound = library.backward_of(problem)
    names = bound.__globals__
    assert names["math"].log2(math.e) == pytest.approx(0.3 * math.log2(math.e))
    assert names["math"].e == math.e
    assert jnp.dtype(names["jnp"].float16) == jnp.bfloat16
    assert names["jnp"].float32 is jnp.float32
    assert attention_mgpu.math is math
    assert attention_mgpu.jnp is jnp
    for emitter in (False, True):
        assert library.forward_of(problem, pipeline_emitter=emitter).__globals__ is not names


def test_a_release_that_scales_otherwise_is_refused(monkeypatch):
    changed = types.FunctionType((lambda q: q).__code__, {}, "_attention_forward")
    monkeypatch.setattr(attention_mgpu, "_attention_forward", changed)
    with pytest.raises(UnsupportedError, match="takes 0 binary logarithms, not 1"):
        library.forward_of(FULL, pipeline_emitter=False)
