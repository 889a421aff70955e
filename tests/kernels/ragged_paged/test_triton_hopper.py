"""Ragged attention for Hopper, as far as it goes without one: what it refuses, what it tries, where a token lies."""

import dataclasses
import importlib.metadata

import jax
import numpy as np
import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.lang.triton.limits import refuses_triton
from attn_tune.kernels.ragged_paged.triton_hopper import SPEC, space
from attn_tune.kernels.ragged_paged.triton_hopper.config import WIDENING_REGISTERS
from attn_tune.kernels.ragged_paged.triton_hopper.plan import plan_of, q_slots, shared_bytes
from attn_tune.ops.contract import load
from attn_tune.ops.fields.cache import LAYOUTS
from attn_tune.ops.ragged_paged.op import OP
from attn_tune.ops.ragged_paged.operands import Operands
from attn_tune.ops.ragged_paged.problem import Problem
from attn_tune.schema.device import Device
from attn_tune.schema.errors import UnsupportedError, UsageError
from tests.chosen import chosen, values_asked_for
from tests.kernels.scripts import built

H200 = device_from_kind("nvidia-h200")
SEARCH = SPEC.searches["fwd"]


def problem(B=4, T=4096, S=4096, N=32, K=8, H=128, V=None, page=64, **flags):
    return Problem(
        batch=B, tokens=T, kv_len=S, num_q_heads=N, num_kv_heads=K, head_dim=H, v_head_dim=V or H, page_size=page,
        scale=flags.pop("scale", H**-0.5), **flags,
    )  # fmt: skip


PROBLEMS = {
    "plain": problem(),
    "small pages": problem(page=8),
    "contiguous": problem(page=0),
    "wide": problem(H=256, N=16),
    "narrow": problem(H=16, N=64, K=1),
    "five": problem(N=40),
    "many": problem(N=71, K=1, H=64),
    "latent": problem(N=16, K=16, H=192, V=128),
    "odd": problem(H=80, page=24),
    "mixed": problem(B=64, workload="mix"),
    "few": problem(T=40, S=40),
    "float8": problem(kv_dtype="float8_e4m3fn", kv_scale="tensor"),
    "int8": problem(kv_dtype="int8", kv_scale="token"),
    "wide float8": problem(H=256, N=16, kv_dtype="float8_e4m3fn"),
    "mixed float8": problem(B=64, workload="mix", H=64, kv_dtype="float8_e4m3fn", kv_scale="head"),
}


def config(p, **knobs):
    return dataclasses.replace(SEARCH.heuristic(p, H200), **knobs)


def operands(p):
    shapes = {x.name: jax.ShapeDtypeStruct(x.shape, x.dtype) for x in OP.operands(p, "fwd")}
    return Operands(**{name: shapes.get(name) for name in Operands._fields})


@pytest.mark.parametrize(
    ("p", "device", "words"),
    [
        (problem(), Device(platform="cuda", family="sm_80", variant="nvidia-a100"), "sm_80"),
        (problem(), Device(platform="cuda", family="sm_100", variant="nvidia-b200"), "sm_100"),
        (problem(), Device(platform="cpu", family="x86_64", variant="cpu-x86_64"), "cpu"),
        (problem(dtype="float32"), H200, "float32"),
        (problem(kv_dtype="int8", kv_scale="token", q_scale="token"), H200, "qscale=token"),
        (problem(kv_dtype="int8", kv_scale="token", dtype="float16"), H200, "kvscale=token"),
        (problem(kv_dtype="float8_e4m3fn", H=24), H200, "h=24 is no multiple of 16 from 32 to 256"),
        (problem(kv_dtype="float8_e4m3fn", H=16), H200, "h=16 is no multiple of 16 from 32 to 256"),
        (problem(kv_dtype="float8_e4m3fn", N=65, K=1, V=256), H200, "65 query heads"),
        (problem(H=100), H200, "h=100 is no multiple of 8"),
        (problem(H=128, V=264), H200, "v=264"),
        (problem(page=4), H200, "page=4"),
        (problem(page=20), H200, "page=20"),
        (problem(N=129, K=1), H200, "129 query heads"),
        (problem(scale=-1.0), H200, "positive"),
    ],
)
def test_a_problem_that_triton_hopper_cannot_do_has_a_reason(p, device, words):
    assert words in SPEC.unsupported(p, "fwd", device)


@pytest.mark.parametrize(
    ("version", "cache", "words"),
    [
        ("3.5.1", {}, "3.6 or later; 3.5.1"),
        ("3.6.0", {}, None),
        ("3.10.1", {}, None),
        ("3.6.0", {"kv_dtype": "int8", "kv_scale": "tensor"}, "3.9 or later; 3.6.0"),
        ("3.9.0", {"kv_dtype": "int8", "kv_scale": "tensor"}, None),
    ],
)
def test_an_older_triton_is_refused_by_its_version(monkeypatch, version, cache, words):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    refuses_triton.cache_clear()
    reason = SPEC.unsupported(problem(**cache), "fwd", H200)
    refuses_triton.cache_clear()
    assert reason is None if words is None else words in reason


def test_most_samples_of_the_op_are_taken():
    """So that ``validate`` proves pages, layouts, windows, sinks and mixed batches."""
    taken = {name for name, p in load(OP.samples)().items() if SPEC.unsupported(p, "fwd", H200) is None}
    assert len(taken) >= 20
    assert taken >= {"paged_at_edges", "interleaved", "group_of_five", "sinks_window_queries", "mixed", "not_causal"}
    codes = {"float8", "float8_tensor", "float8_head", "float8_token", "int8_token", "int8_head", "everything"}
    assert taken >= codes | {"float8_token_interleaved", "float8_token_head_first", "not_causal_mixed"}


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"block_k": 48}, "block_k"),
        ({"num_stages": 1}, "num_stages"),
        ({"consumers": 4}, "consumers"),
        ({"copying_registers": 32}, "copying_registers"),
        ({"ping_pong": True, "consumers": 1}, "consumers=2"),
        ({"decode_block_k": 32}, "decode_programs"),
    ],
)
def test_a_knob_outside_its_range_is_named(knobs, words):
    with pytest.raises(UsageError, match=words):
        config(problem(), **knobs)


@pytest.mark.parametrize("p", PROBLEMS.values(), ids=PROBLEMS)
def test_all_candidates_fit(p):
    candidates = SEARCH.candidates[""](p, H200)
    assert candidates[0] == SEARCH.heuristic(p, H200)
    assert len(candidates) >= 8
    assert max(shared_bytes(p, c) for c in candidates) <= 232448
    # 64 K registers, of four warps around the one that copies, of four that widen codes, and of those that multiply.
    has_codes = p.kv_dtype != "same"
    for c in candidates:
        multiplying = c.consumers * c.multiplying_registers(has_codes=has_codes)
        assert 128 * (c.copying_registers + WIDENING_REGISTERS * has_codes + multiplying) <= 65536


def test_a_config_that_does_not_fit_is_refused_with_figures():
    p = problem()
    assert "232448" in SEARCH.infeasible(p, H200, config(p, num_stages=4))
    narrow = problem(H=64)
    assert "registers" in SEARCH.infeasible(narrow, H200, config(narrow, block_k=256, num_stages=2))
    assert "registers" in SEARCH.infeasible(p, H200, config(p, consumers=3, block_k=128))
    wide = PROBLEMS["wide float8"]
    assert config(wide).consumers == 1
    assert "158 registers" in SEARCH.infeasible(wide, H200, config(wide, consumers=2, block_k=32))
    assert "does not divide the 8" in SEARCH.infeasible(p, H200, config(p, heads_per_section=3))
    many = problem(N=71, K=1)
    assert "128 rows" not in (SEARCH.infeasible(many, H200, config(many)) or "")
    assert "64 rows" in SEARCH.infeasible(many, H200, config(many, consumers=1))
    assert "192 rows" in SEARCH.infeasible(many, H200, config(many, consumers=3, block_k=32, num_stages=2))


def test_the_next_queries_come_early_where_there_is_room():
    assert q_slots(problem(), config(problem())) == 2
    assert q_slots(PROBLEMS["float8"], config(PROBLEMS["float8"])) == 2
    assert q_slots(problem(H=256), config(problem(H=256))) == 1
    # A slot holds what comes out too.
    wide_values = problem(H=64, V=256)
    assert q_slots(wide_values, config(wide_values, num_stages=3)) == 1


def test_caches_of_16_bits_and_of_codes_are_first_where_they_were_timed():
    assert space.place(problem(), "fwd", H200) > 10 > space.place(problem(layout="hnd"), "fwd", H200)
    assert space.place(PROBLEMS["float8"], "fwd", H200) > 10


def test_sequences_decode_in_a_launch_of_their_own_where_the_inputs_have_some():
    assert config(problem()).decode_programs is None
    mixed = config(problem(B=64, workload="mix"))
    assert mixed.decode_programs is not None
    near = problem(B=64, workload="mix", K=4, N=16)
    assert SEARCH.adapt(problem(B=64, workload="mix"), near, H200, mixed).decode_programs == 2 * mixed.decode_programs


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize("heads", [1, 3])
def test_the_rows_of_a_cache_are_those_of_its_layout(layout, page, heads):
    p = problem(B=2, T=30, S=32, N=2 * heads, K=heads, H=16, page=page, layout=layout)
    o = operands(p)
    plan = plan_of(p, config(p, heads_per_section=1), o)
    pages, slots = p.input_sizes
    k = np.arange(np.prod(o.k.shape)).reshape(o.k.shape)
    rows = k.reshape(plan.cache_rows, plan.cache_heads, 16)
    at = {
        "nhd": lambda page, slot, head: k[page, slot, head],
        "hnd": lambda page, slot, head: k[page, head, slot],
        "head_first": lambda page, slot, head: k[head, page, slot],
        "interleaved": lambda page, slot, head: k[page, slot, 2 * head],
    }[layout]
    for token in np.ndindex(pages, slots, heads):
        page, slot, head = token
        row = page * plan.page_rows + slot + head * plan.head_rows
        np.testing.assert_array_equal(rows[row, head * plan.head_step], at(*token))
        if layout == "interleaved":
            value = rows[row, head * plan.head_step + plan.v_head]
            np.testing.assert_array_equal(value, k[page, slot, 2 * head + 1])


def test_a_cache_of_more_rows_than_32_bits_count_is_refused_by_its_shape():
    p = problem(H=16, layout="hnd")
    o = operands(p)
    k = jax.ShapeDtypeStruct((2**22, 8, 64, 16), o.k.dtype)
    with pytest.raises(UnsupportedError, match=r"k=\[4194304, 8, 64, 16\] has 2147483648 rows"):
        plan_of(p, config(p), o._replace(k=k, v=k))


CODES = ("float8_groups", "int8_everything", "float8", "float8_token", "int8", "float8_wide")


@pytest.fixture(scope="module")
def builds(request):
    names = values_asked_for(request, "build")
    return {build["name"]: build for build in built("tests.kernels.ragged_paged.hopper_builds", *names)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    chosen(
        ("llama", "mixed", "everything", "contiguous", *CODES),
        ("mixed", "everything", *CODES[:2]),
    ),
)
def test_builds_fit_multiply_in_groups_of_warps_and_copy_by_descriptor(build, builds):
    found = builds[build]
    # Scales of tokens are a number a column beside two tiles of accumulators.
    assert found["spills"] <= (448 if build in CODES else 256), found
    assert found["counted"] - 1024 < found["shared"] <= found["counted"], found
    assert found["products"] > 0 < found["copies"], found


@pytest.mark.slow
def test_prompts_are_one_launch_and_mixed_calls_three(builds):
    # Decoding has two: it cuts keys, and combines the parts.
    assert (builds["int8_everything"]["launches"], builds["mixed"]["launches"]) == (1, 3)
