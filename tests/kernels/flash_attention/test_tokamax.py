"""tokamax's kernels through the op's contract, where tokamax is installed (the extra tokamax); no GPU is needed."""

import dataclasses
import functools
import types

import jax
import pytest

pytest.importorskip("tokamax", reason="tokamax is not installed (the extra 'tokamax')")

from jax.experimental import pallas as pl
from tokamax import config as tokamax_config
from tokamax._src import gpu_utils, mosaic_gpu
from tokamax._src.ops.attention import pallas_triton_vjp
from tokamax._src.pallas import block

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.flash_attention.tokamax_mosaic import (
    SPEC as MOSAIC,
    backward as mosaic_backward,
    forward as mosaic_forward,
)
from attn_tune.kernels.flash_attention.tokamax_mosaic.config import DkvConfig, DqConfig
from attn_tune.kernels.flash_attention.tokamax_mosaic.shared import shared
from attn_tune.kernels.flash_attention.tokamax_triton import (
    SPEC as TRITON,
    backward as triton_backward,
    forward as triton_forward,
)
from attn_tune.kernels.flash_attention.tokamax_triton.config import ForwardConfig as TritonForward
from attn_tune.ops.contract import load
from attn_tune.ops.flash_attention.features import samples
from attn_tune.ops.flash_attention.inputs import make_inputs
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.flash_attention.reference import baseline, reference
from tests.kernels.flash_attention.cuda_lowering import (
    check_outputs,
    lowered,
    needs_cuda_plugin,
    outputs_of,
)
from tests.kernels.flash_attention.judged import compare

H200 = device_from_kind("nvidia-h200")
PROBLEMS = samples()
SPECS = {spec.name: spec for spec in (MOSAIC, TRITON)}
CELLS = [
    (name, direction, spec.name)
    for spec in SPECS.values()
    for name, problem in PROBLEMS.items()
    for direction in spec.searches
    if spec.unsupported(problem, direction, H200) is None
]
FULL = Problem(
    batch=2, q_len=512, kv_len=512, num_q_heads=4, num_kv_heads=2, head_dim=128, v_head_dim=128,
    scale=128**-0.5,
)  # fmt: skip


@pytest.fixture(autouse=True)
def on_a_hopper(monkeypatch):
    """tokamax asks the default device what it is."""
    device = types.SimpleNamespace(core_count=132)
    backend = types.SimpleNamespace(get_default_device=lambda: device)
    monkeypatch.setattr(gpu_utils, "_compute_capability", lambda device=None: 9.0)
    monkeypatch.setattr(mosaic_gpu, "backend", backend)
    with tokamax_config.cross_compile(True):
        yield


@pytest.mark.parametrize(("name", "direction", "kernel"), CELLS)
def test_outputs_have_the_shapes_and_types_of_the_contract(name, direction, kernel):
    problem, search = PROBLEMS[name], SPECS[kernel].searches[direction]
    found = outputs_of(SPECS[kernel], problem, direction, search.heuristic(problem, H200))
    check_outputs(problem, direction, found)


@needs_cuda_plugin
@pytest.mark.parametrize(("name", "direction", "kernel"), CELLS)
def test_each_part_lowers_to_launches_that_the_compiler_may_drop(name, direction, kernel):
    problem, search = PROBLEMS[name], SPECS[kernel].searches[direction]
    call = {"tokamax_mosaic": "@mosaic_gpu", "tokamax_triton": "@__gpu$"}[kernel]
    for part in search.parts:
        config = search.heuristic(problem, H200)
        text = lowered(SPECS[kernel], problem, direction, config, part)
        # A part's own launch, and the other one of the same call, whose result nothing reads.
        assert text.count(f"custom_call {call}") == len(search.parts)
        assert "has_side_effect = true" not in text


@needs_cuda_plugin
@pytest.mark.parametrize(
    "changes",
    [{}, {"head_dim": 80, "v_head_dim": 72}, {"mask_dims": "b1ts"}, {"bias_dims": "1nts"}],
    ids=str,
)
def test_shared_memory_is_what_mosaic_counts(changes):
    problem = dataclasses.replace(FULL, **changes)
    for persistent in (False, True):
        config = MOSAIC.searches["fwd"].config(block_q=128, block_kv=256, num_stages=3, persistent=persistent)
        with pytest.raises(ValueError, match=f"smem_bytes={shared(problem, config)} "):
            lowered(MOSAIC, problem, "fwd", config)
    whole = MOSAIC.searches["bwd"].heuristic(problem, H200)
    big = {"block_q": 256, "block_kv": 256, "num_stages": 2}
    for part, launch in (("dq", DqConfig(**big)), ("dkv", DkvConfig(**big))):
        with pytest.raises(ValueError, match=f"smem_bytes={shared(problem, launch)} "):
            lowered(MOSAIC, problem, "bwd", dataclasses.replace(whole, **{part: launch}), part)


def test_configs_are_those_of_the_library():
    forward = MOSAIC.searches["fwd"].config(
        block_q=128, block_kv=192, num_stages=3, persistent=True, split_k=2,
        fold_q_sequence_heads=True,
    )  # fmt: skip
    _same_knobs(mosaic_forward.library_config(forward), forward)
    launch = {"block_q": 128, "block_kv": 192, "num_stages": 3, "compute_warpgroups": 1}
    dq, dkv = (mosaic_backward.library_config(cls(**launch)) for cls in (DqConfig, DkvConfig))
    assert (dq.block_q_dq, dq.block_kv_dq, dq.block_q_dkv, dq.block_kv_dkv) == (128, 192, 64, 64)
    assert (dkv.block_q_dkv, dkv.block_kv_dkv, dkv.block_q_dq, dkv.block_kv_dq) == ((128, 192, 64, 64))
    assert (dq.compute_wgs, dq.num_stages) == (dkv.compute_wgs, dkv.num_stages) == (1, 3)
    for search, module in (("fwd", triton_forward), ("bwd", triton_backward)):
        config = TRITON.searches[search].heuristic(FULL, H200)
        _same_knobs(module.library_config(config), config)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["causal", "causal_longer_queries", "window_left", "gqa", "sinks", "soft_cap", "mask_full"],
)
def test_the_forward_is_right_in_the_interpreter(interpreted, name):
    # A scale that bfloat16 cannot hold, as at head dim 128: the lse must not show it.
    problem = dataclasses.replace(PROBLEMS[name], scale=0.3)
    _check(problem, "fwd", TRITON.searches["fwd"].heuristic(problem, H200))


@pytest.mark.slow
def test_split_keys_are_right_in_the_interpreter(interpreted):
    config = TritonForward(block_q=16, block_k=16, num_warps=2, num_stages=2, split_k=2)
    _check(dataclasses.replace(PROBLEMS["plain"], scale=0.3), "fwd", config)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["causal", "sinks", "lse_gradient", "bias_full"])
def test_the_backward_is_right_in_the_interpreter(interpreted, name):
    problem = PROBLEMS[name]
    _check(problem, "bwd", TRITON.searches["bwd"].heuristic(problem, H200))


@pytest.fixture
def interpreted(monkeypatch):
    """Pallas-Triton as plain XLA. What ``pl.when`` guards runs always: with equal lengths it does anyway."""
    if jax.__version_info__ < (0, 12):
        pytest.skip("the interpreter of JAX 0.11 has no program_id inside of loops")
    call = functools.partial(pl.pallas_call, interpret=True)
    monkeypatch.setattr(block, "pl", _Names(pl, pallas_call=call))
    monkeypatch.setattr(pallas_triton_vjp, "pl", _Names(pl, when=lambda condition: _now))


class _Names:
    def __init__(self, module, **names):
        self.__dict__.update(names)
        self._module = module

    def __getattr__(self, name):
        return getattr(self._module, name)


def _now(function):
    return function()


def _check(problem, direction, config):
    inputs = jax.jit(make_inputs, static_argnums=(0, 1))(problem, direction, 0)
    call = load(TRITON.searches[direction].call)
    found = jax.jit(lambda x: call(problem, config, x))(inputs)
    exact, plain = (jax.jit(f, static_argnums=(0, 1))(problem, direction, inputs) for f in (reference, baseline))
    for error in compare(found, exact, plain):
        assert error.ratio <= 1, error


def _same_knobs(theirs, ours):
    for field in dataclasses.fields(ours):
        assert getattr(theirs, field.name) == getattr(ours, field.name), field.name
