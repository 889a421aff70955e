"""tokamax's batched ragged paged attention in decoding: interpreted, its settings, and what it refuses."""

import dataclasses
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.lang.pallas_tpu.batched import scalars
from attn_tune.kernels.lang.pallas_tpu.batched.blocks import vmem
from attn_tune.kernels.lang.pallas_tpu.batched.chunks import chunks_of
from attn_tune.kernels.lang.pallas_tpu.batched.config import Config
from attn_tune.kernels.lang.pallas_tpu.memory import KIB, limit_of
from attn_tune.kernels.paged_decode.tokamax_batched_rpa import SPEC
from attn_tune.ops.contract import load
from attn_tune.ops.paged_decode.inputs import make_inputs
from attn_tune.ops.paged_decode.problem import Problem
from attn_tune.schema.errors import UnsupportedError, UsageError
from tests.kernels.paged_decode.dense_numpy import assert_right
from tests.kernels.tpu_interpreted import run_viewed

has_tokamax = pytest.mark.skipif(importlib.util.find_spec("tokamax") is None, reason="tokamax is not installed")

TARGETS = tuple(device_from_kind(f"tpu-{name}") for name in ("v5e", "v5p", "v6e", "v7x"))
V4, V6E = device_from_kind("tpu-v4"), TARGETS[2]
SEARCH = SPEC.searches["fwd"]
TINY = Problem(
    batch=6, q_len=1, kv_len=77, num_q_heads=4, num_kv_heads=2, head_dim=128, v_head_dim=128, page_size=8,
    layout="interleaved", scale=128**-0.5, at_edges=True,
)  # fmt: skip
LLAMA = dataclasses.replace(TINY, batch=32, kv_len=4096, num_q_heads=32, num_kv_heads=8, page_size=64, at_edges=False)
CONFIG = Config(bq_sz=2, bq_c_sz=1, bkv_sz=16, batch_size=2, n_buffer=2)


@pytest.mark.slow
@has_tokamax
def test_decoding_is_right_and_leaves_the_cache_as_it_is(monkeypatch):
    problem = dataclasses.replace(TINY, q_len=2, window=11, has_sinks=True, kv_dtype="int8", kv_scale="tensor")
    operands = make_inputs(problem, "fwd", 1)
    before = np.asarray(operands.k).tobytes()
    assert SPEC.unsupported(problem, "fwd", V6E) is None
    assert SEARCH.infeasible(problem, V6E, CONFIG) is None
    assert_right(problem, operands, run_viewed(SPEC, problem, CONFIG, operands, monkeypatch))
    assert np.asarray(operands.k).tobytes() == before


@has_tokamax
def test_no_output_of_the_launch_is_the_cache(monkeypatch):
    from jax.experimental.pallas import tpu as pltpu

    info = pltpu.get_tpu_info_for_chip(pltpu.ChipVersion.TPU_V6E, 1)
    monkeypatch.setattr(pltpu, "get_tpu_info", lambda: info)
    operands = jax.eval_shape(lambda: make_inputs(LLAMA, "fwd", 0))
    call, config = load(SEARCH.call), SEARCH.heuristic(LLAMA, V6E)
    program = jax.make_jaxpr(lambda x: call(LLAMA, config, x))(operands)
    launches = [e for e in program.jaxpr.eqns if e.primitive.name == "pallas_call"]
    assert len(launches) == 2
    for launch in launches:
        assert not launch.params["input_output_aliases"]
        assert all(out.aval.size < operands.k.size for out in launch.outvars)


@has_tokamax
def test_the_settings_have_every_knob_and_sum_in_float32():
    from attn_tune.kernels.lang.pallas_tpu.batched.library import settings

    config = Config(
        bq_sz=32, bq_c_sz=16, bkv_sz=512, batch_size=4, n_buffer=3, fuse_accum=True, schedule_steps=256,
        vmem_limit_kib=65536,
    )  # fmt: skip
    found = settings(
        config, num_q_heads=32, num_kv_heads=8, head_dim=128, page_size=64, batch=3, width=5, tokens=70,
        q_dtype="bfloat16", kv_dtype="int8", scale=0.1, window=12, soft_cap=30.0, chunks=7,
    )  # fmt: skip
    for name in ("bq_sz", "bq_c_sz", "bkv_sz", "batch_size", "n_buffer", "fuse_accum"):
        assert getattr(found, name) == getattr(config, name)
    assert found.max_steps_ub == config.schedule_steps
    assert found.vmem_limit_bytes == KIB * config.vmem_limit_kib
    assert found.max_schedule_size_multiplier == 7
    assert (found.model.sm_scale, found.model.sliding_window, found.model.soft_cap) == (0.1, 12, 30.0)
    assert found.serve.dtype_out == jnp.float32
    assert found.serve.skip_kv_update
    assert found.bkv_p_new == 1
    scaled = found.with_scale(0.5)
    assert (scaled.serve.scale_k, scaled.bkv_p_new, found.serve.scale_k) == (0.5, 1, None)


@has_tokamax
@pytest.mark.parametrize("kv_dtype", ["same", "int8"])
def test_buffers_are_counted_as_the_library_shapes_them(kv_dtype, monkeypatch):
    from jax.experimental.pallas import tpu as pltpu

    from attn_tune.kernels.lang.pallas_tpu.batched.library import settings

    problem = dataclasses.replace(LLAMA, kv_dtype=kv_dtype, kv_scale="none" if kv_dtype == "same" else "tensor")
    config = Config(bq_sz=16, bq_c_sz=16, bkv_sz=512, batch_size=2, n_buffer=3)
    info = pltpu.get_tpu_info_for_chip(pltpu.ChipVersion.TPU_V6E, 1)
    monkeypatch.setattr(pltpu, "get_tpu_info", lambda: info)
    found = settings(
        config, num_q_heads=32, num_kv_heads=8, head_dim=128, page_size=64, batch=32, width=64, tokens=32,
        q_dtype="bfloat16", kv_dtype=problem.cache_dtype, scale=0.1, window=None, soft_cap=None, chunks=1,
    )  # fmt: skip

    def size(shape, dtype):
        return int(np.prod(shape)) * jnp.dtype(dtype).itemsize

    deep = size(found.q_vmem_shape, "bfloat16") + size(found.kv_vmem_shape, problem.cache_dtype)
    double = size(found.q_vmem_shape, "float32") + size(found.lse_vmem_shape, "float32")
    sums = 2 * size(found.lm_scratch_shape, "float32") + size(found.acc_scratch_shape, "float32")
    assert vmem(problem, config).buffers == 3 * deep + 2 * double + sums


@pytest.mark.parametrize("device", TARGETS, ids=str)
def test_the_untuned_config_comes_first_among_distinct_feasible_ones(device):
    found = SEARCH.candidates[""](LLAMA, device)
    assert found[0] == SEARCH.heuristic(LLAMA, device)
    assert len(set(found)) == len(found) > 10
    assert {SEARCH.infeasible(LLAMA, device, config) for config in found} == {None}
    assert vmem(LLAMA, found[0]).expected <= limit_of(device, found[0].vmem_limit_kib)
    for changes in ({"kv_len": 100}, {"q_len": 4}, {"num_q_heads": 64}):
        near = dataclasses.replace(LLAMA, **changes)
        for config in found[:40]:
            adapted = SEARCH.adapt(LLAMA, near, device, config)
            assert adapted.bq_sz == near.q_len
            assert "bkv_sz" not in (SEARCH.infeasible(near, device, adapted) or "")


@pytest.mark.parametrize(("batch", "steps"), [(1, 128), (3, 128), (2, 256)])
def test_a_schedule_has_room_for_the_longest_sequences(batch, steps):
    config = dataclasses.replace(CONFIG, batch_size=batch, schedule_steps=steps)
    for news in ([1] * 9, [0, 100, 3], [2000], [5, 7, 0, 61]):
        blocks = sum(-(-new // config.bq_sz) for new in news) * (4096 // config.bkv_sz)
        # The chunk behind a full one is written too.
        needed = blocks // (config.batch_size * config.schedule_steps) + 1
        assert chunks_of(config, len(news), sum(news), 4096) >= needed


def test_a_table_or_a_schedule_that_scalar_memory_cannot_hold_is_refused_with_the_numbers():
    long = dataclasses.replace(LLAMA, batch=128, kv_len=2**17)
    assert "1024 KiB of page table" in SPEC.unsupported(long, "fwd", V6E)
    small = dataclasses.replace(LLAMA, page_size=8)
    wide = dataclasses.replace(CONFIG, bq_sz=1, bkv_sz=2048, batch_size=4)
    assert "KiB of schedule" in SEARCH.infeasible(small, V6E, wide)
    assert scalars.schedule(dataclasses.replace(wide, schedule_steps=256), 8)["schedule"] > 2**20


@has_tokamax
def test_a_table_that_is_wider_than_the_problem_tells_is_refused_where_it_is_traced():
    operands = jax.eval_shape(lambda: make_inputs(dataclasses.replace(TINY, batch=256), "fwd", 0))
    wide = operands._replace(page_table=jax.ShapeDtypeStruct((256, 1024), jnp.int32))
    call, config = load(SEARCH.call), dataclasses.replace(CONFIG, bq_sz=1)
    with pytest.raises(UnsupportedError, match=r"1024 KiB of page table.*narrower page_table"):
        jax.eval_shape(lambda x: call(TINY, config, x), wide)


def test_blocks_that_cannot_run_are_refused_with_the_numbers():
    assert "multiple of page=8" not in (SEARCH.infeasible(TINY, V6E, dataclasses.replace(CONFIG, bq_sz=1)) or "")
    paged = dataclasses.replace(TINY, page_size=32)
    assert "multiple of page=32" in SEARCH.infeasible(paged, V6E, CONFIG)
    assert "above 1, for 1 queries" in SEARCH.infeasible(TINY, V6E, CONFIG)
    one = dataclasses.replace(CONFIG, bq_sz=1)
    assert "above 128" in SEARCH.infeasible(TINY, V6E, dataclasses.replace(one, bkv_sz=256))
    large = dataclasses.replace(one, bkv_sz=4096, batch_size=8, n_buffer=3)
    assert "MiB of VMEM; its limit on tpu-v6e is 32 MiB" in SEARCH.infeasible(LLAMA, V6E, large)
    with pytest.raises(UsageError, match="bq_c_sz=4 must not be above bq_sz=2"):
        dataclasses.replace(CONFIG, bq_c_sz=4)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"layout": "nhd"}, "layout interleaved, not nhd"),
        ({"page_size": 0}, "contiguous"),
        ({"page_size": 5}, "page=5 is no power of two"),
        ({"dtype": "float16"}, "float16"),
        ({"dtype": "float32", "kv_dtype": "int8", "kv_scale": "tensor"}, "float32 queries by codes"),
        ({"head_dim": 64, "v_head_dim": 64}, "h=64"),
        ({"kv_dtype": "int8", "kv_scale": "head"}, "one scale"),
        ({"kv_dtype": "int8", "kv_scale": "tensor", "num_kv_heads": 1}, "fill no whole words"),
    ],
)
def test_an_unsupported_problem_has_its_reason(changes, word):
    assert word in SPEC.unsupported(dataclasses.replace(TINY, **changes), "fwd", V6E)


def test_other_devices_have_their_reason():
    assert "not on cuda" in SPEC.unsupported(TINY, "fwd", device_from_kind("sm_90"))
    assert "TPU v5 and later" in SPEC.unsupported(TINY, "fwd", V4)
